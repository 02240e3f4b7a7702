// The layout of a recall: the starting cue is in the middle, and the cues that follow from it are in rings around it.
// Several starting cues share the first ring. Pure. The same recall always has the same layout, so that the user finds
// a cue in the same place.

const RING = 130;

/** Return `{nodes, edges, radius}`. A node is `{cue, x, y, ring, angle}`, and all nodes are within `radius`.
 *
 * - `edges`: a list of `{source, target, weight}`, in the order in which the recall followed them. */
export function layOut(activated, edges, center) {
  const cues = new Set(activated);
  const links = edges.filter((edge) => cues.has(edge.source) && cues.has(edge.target));
  const children = new Map();
  const parent = new Map();
  const roots = [];
  for (const { source, target } of links) {
    if (parent.has(target) || leads(parent, target, source)) continue;
    parent.set(target, source);
    children.set(source, [...(children.get(source) ?? []), target]);
  }
  for (const cue of activated) if (!parent.has(cue)) roots.push(cue);
  roots.sort((first, second) => Number(second === center) - Number(first === center));
  const leaves = new Map();
  const count = (cue) => {
    const leavesBelow = (children.get(cue) ?? []).reduce((sum, child) => sum + count(child), 0);
    leaves.set(cue, Math.max(1, leavesBelow));
    return leaves.get(cue);
  };
  const leavesOfAll = roots.reduce((sum, root) => sum + count(root), 0);
  const alone = roots.length === 1;
  const nodes = [];
  const place = (cue, ring, from, to) => {
    const angle = (from + to) / 2;
    nodes.push({ cue, ring, angle, x: 0, y: 0 });
    let at = from;
    for (const child of children.get(cue) ?? []) {
      const share =
        ((to - from) * leaves.get(child)) /
        (children.get(cue) ?? []).reduce((sum, sibling) => sum + leaves.get(sibling), 0);
      place(child, ring + 1, at, at + share);
      at += share;
    }
  };
  let at = -Math.PI / 2;
  for (const cue of roots) {
    const share = (2 * Math.PI * leaves.get(cue)) / leavesOfAll;
    place(cue, alone ? 0 : 1, at, at + share);
    at += share;
  }
  const radius = spread(nodes);
  return { nodes, edges: links, radius };
}

/** Return whether the cue `from` is `to` or one of its ancestors. An edge from `to` to `from` would then close a
 * cycle. */
function leads(parent, from, to) {
  for (let ancestor = to; ancestor !== undefined; ancestor = parent.get(ancestor)) if (ancestor === from) return true;
  return false;
}

/** Set the positions of the nodes, so that each ring has enough room for its cues. Returns the radius of the last
 * ring. */
function spread(nodes) {
  const rings = Map.groupBy(nodes, (node) => node.ring);
  let radius = 0;
  for (const ring of [...rings.keys()].sort((first, second) => first - second)) {
    const ringNodes = rings.get(ring);
    if (ring > 0) radius = Math.max(radius + RING, (ringNodes.length * 46) / (2 * Math.PI) + 40);
    for (const node of ringNodes) {
      node.x = ring === 0 ? 0 : radius * 1.35 * Math.cos(node.angle);
      node.y = ring === 0 ? 0 : radius * Math.sin(node.angle);
    }
  }
  return radius;
}
