// Creates elements from text and attributes alone. Nothing here parses HTML; `trusted.js` is the only module that does.

const PROPERTIES = new Set([
  "value",
  "checked",
  "disabled",
  "hidden",
  "indeterminate",
  "open",
  "selected",
  "readOnly",
  "multiple",
  "inert",
]);
const FOLDER = new URL(".", import.meta.url).href;

/** The path of the server on a shared host, such as `/rag`, or "" on its own host. The address of this file is
 * `{ROOT}/web/{version}/dom.js`. */
export const ROOT = FOLDER.startsWith("http")
  ? new URL(FOLDER).pathname.replace(/\/web\/(?:[0-9a-f]{16}\/)?$/, "")
  : "";

/** Return the address of an API with the server's path before it. Other addresses stay the same. */
export const below = (address) => (address.startsWith("/api/") ? ROOT + address : address);

const SAFE_ADDRESS = /^(?:#|\/(?!\/)|https?:|mailto:|blob:)/i;

/** Return an element.
 *
 * - `props`: attributes; those in PROPERTIES are set as properties. `class`, `dataset`, `style` (custom properties) and
 *   `on*` listeners have their usual meaning. `ref` is called with the element. An address that could run code is left
 *   out
 * - `children`: elements, text or arrays; null, undefined and false are left out */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** Return an SVG element. The arguments are those of `h`. */
export function svg(tag, props, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) {
      if (PROPERTIES.has(name)) element[name] = false;
      continue;
    }
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "ref") value(element);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name === "style")
      for (const [key, setting] of Object.entries(value)) element.style.setProperty(key, setting);
    else if (PROPERTIES.has(name) && !(name === "value" && tagOf(element) === "li")) element[name] = value;
    else if (name === "href" || name === "src") {
      if (isSafe(String(value), tagOf(element))) element.setAttribute(name, below(String(value)));
    } else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

const tagOf = (element) => element.localName;

function isSafe(address, tag) {
  return SAFE_ADDRESS.test(address) || (tag === "img" && address.startsWith("data:image/"));
}

/** Append children. They may have the same types as the children of `h`. */
export function append(element, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/** Replace the children of an element. */
export function replace(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

let ids = 0;

/** Return an id that no other element has. */
export function newId(prefix = "e") {
  ids += 1;
  return `${prefix}-${ids}`;
}

/** Return a function that schedules `draw` for the next frame. Several calls within a frame schedule it once. */
export function oncePerFrame(draw) {
  let frame = 0;
  let timer = 0;
  const run = () => {
    frame = timer = 0;
    draw();
  };
  const ask = () => {
    // The browser renders no frames for a hidden page, so a frame callback would wait until the page is shown.
    if (frame || timer) return;
    if (document.hidden) timer = setTimeout(run, 100);
    else frame = requestAnimationFrame(run);
  };
  ask.cancel = () => {
    cancelAnimationFrame(frame);
    clearTimeout(timer);
    frame = timer = 0;
  };
  return ask;
}

/** Return a debounced function: `call` runs when the last call was the given number of milliseconds ago. */
export function debounce(milliseconds, call) {
  let timer = 0;
  const later = (...values) => {
    clearTimeout(timer);
    timer = setTimeout(call, milliseconds, ...values);
  };
  later.cancel = () => clearTimeout(timer);
  return later;
}

const styles = new Map();
/** Load a style sheet once. Resolves when the browser applies it, or when it could not be loaded. */
export function loadStyle(address) {
  if (!address || styles.has(address)) return styles.get(address);
  const loading = new Promise((resolve) => {
    const onerror = () => {
      styles.delete(address); // the next page that needs it tries again
      resolve();
    };
    const href = address.replace(/^\/web\//, FOLDER);
    document.head.append(h("link", { rel: "stylesheet", href, onload: resolve, onerror }));
  });
  styles.set(address, loading);
  return loading;
}
