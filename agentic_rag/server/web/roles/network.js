// The network of a recall: cues, and links with their strength. The user can zoom, move, and recall from any cue.

import { h, svg } from "../dom.js";
import { formatNumber, t } from "../i18n.js";
import { button } from "../ui.js";
import { layOut } from "./network-layout.js";

/** The start of every recall. It is not a cue. */
export const ROOT = "mind";
const LONGEST = 22;
const CLOSEST = 0.25;
const FARTHEST = 3;

/** Return the network of a recall as an element. `onChoose(cue)`: called when the user chooses a cue. */
export function networkView({ activated, edges, center }, onChoose) {
  const plan = layOut(activated, edges, center);
  const places = new Map(plan.nodes.map((node) => [node.cue, node]));
  const most = Math.max(0.001, ...plan.edges.map((edge) => edge.weight));
  const half = { x: (plan.radius * 1.35 || 60) + 110, y: (plan.radius || 60) + 50 };
  let view = { x: 0, y: 0, zoom: 1 };
  const lines = plan.edges.map(({ source, target, weight }) => {
    const [from, to] = [places.get(source), places.get(target)];
    const share = weight / most;
    const words = t("roles.edge", { source, target, weight: formatNumber(weight, { maximumFractionDigits: 2 }) });
    return svg(
      "line",
      {
        class: "net-edge",
        x1: from.x,
        y1: from.y,
        x2: to.x,
        y2: to.y,
        style: { "--strength": share.toFixed(3) },
        "stroke-width": (0.8 + 2.6 * share).toFixed(2),
      },
      svg("title", {}, words),
    );
  });
  const nodes = plan.nodes.map((node) => nodeView(node, node.cue === center, onChoose));
  const drawing = svg(
    "svg",
    {
      class: "net",
      role: "group",
      "aria-label": t("roles.network", { count: activated.length }),
      preserveAspectRatio: "xMidYMid meet",
    },
    svg("g", {}, lines),
    svg("g", {}, nodes),
  );
  const show = () => {
    const [width, height] = [(2 * half.x) / view.zoom, (2 * half.y) / view.zoom];
    drawing.setAttribute("viewBox", `${view.x - width / 2} ${view.y - height / 2} ${width} ${height}`);
  };
  const zoom = (by) => {
    view = { ...view, zoom: Math.min(FARTHEST, Math.max(CLOSEST, view.zoom * by)) };
    show();
  };
  const move = (x, y) => {
    view = { ...view, x: clamp(view.x + x / view.zoom, half.x), y: clamp(view.y + y / view.zoom, half.y) };
    show();
  };
  drawing.addEventListener(
    "wheel",
    (event) => {
      // Without Ctrl, the wheel scrolls the page. A browser reports a pinch as a wheel with Ctrl.
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(event.deltaY < 0 ? 1.15 : 1 / 1.15);
    },
    { passive: false },
  );
  drawing.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-40, 0], ArrowRight: [40, 0], ArrowUp: [0, -40], ArrowDown: [0, 40] }[event.key];
    if (step) {
      event.preventDefault();
      move(...step);
    } else if (event.key === "+" || event.key === "=") zoom(1.25);
    else if (event.key === "-") zoom(0.8);
  });
  drag(drawing, (x, y) => {
    const scale = (2 * half.x) / drawing.clientWidth;
    move(-x * scale, -y * scale);
  });
  show();
  const tools = h(
    "div",
    { class: "net-tools" },
    button(t("roles.zoomIn"), { kind: "quiet", icon: "add", compact: true, onclick: () => zoom(1.3) }),
    button(t("roles.zoomOut"), { kind: "quiet", icon: "minus", compact: true, onclick: () => zoom(1 / 1.3) }),
    button(t("roles.zoomReset"), {
      kind: "quiet",
      icon: "retry",
      compact: true,
      onclick: () => ((view = { x: 0, y: 0, zoom: 1 }), show()),
    }),
  );
  return h("div", { class: "net-frame" }, drawing, tools);
}

const clamp = (value, most) => Math.min(most, Math.max(-most, value));

function nodeView({ cue, x, y, ring }, isCenter, onChoose) {
  const short = [...cue].length > LONGEST ? `${[...cue].slice(0, LONGEST - 1).join("")}…` : cue;
  const width = 18 + [...short].reduce((sum, character) => sum + (character > "\u2e80" ? 13 : 7.2), 0);
  const does = cue === ROOT ? t("roles.whole") : t("roles.recallFrom", { cue });
  // The name contains the visible text, because a user of voice control says that text.
  const name = does.includes(short) ? does : `${short}: ${does}`;
  const element = svg(
    "g",
    {
      class: `net-node net-ring-${Math.min(ring, 3)} ${isCenter ? "net-center" : ""}`,
      transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`,
      role: "button",
      tabindex: 0,
      "aria-label": name,
    },
    svg("title", {}, name),
    svg("rect", { x: -width / 2, y: -13, width, height: 26, rx: 13 }),
    svg("text", { "text-anchor": "middle", dy: "0.35em" }, short),
  );
  element.addEventListener("click", () => onChoose(cue));
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    onChoose(cue);
  });
  return element;
}

function drag(element, onMove) {
  let from = null;
  element.addEventListener("pointerdown", (event) => {
    if (event.button === 0 && !event.target.closest(".net-node")) from = { x: event.clientX, y: event.clientY };
    if (from) element.setPointerCapture(event.pointerId);
  });
  element.addEventListener("pointermove", (event) => {
    if (!from) return;
    onMove(event.clientX - from.x, event.clientY - from.y);
    from = { x: event.clientX, y: event.clientY };
  });
  for (const end of ["pointerup", "pointercancel"]) element.addEventListener(end, () => (from = null));
}
