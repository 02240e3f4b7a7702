// Elements, made of text and attributes alone: nothing here reads HTML (`trusted.js` is the only place that does).

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

/** The path of the server on a shared host, `/rag`; "" on its own host. This file is `{ROOT}/web/{version}/dom.js`. */
export const ROOT = FOLDER.startsWith("http")
  ? new URL(FOLDER).pathname.replace(/\/web\/(?:[0-9a-f]{16}\/)?$/, "")
  : "";

/** Return an address of the server's interfaces as the browser asks for it: below the server's path. */
export const below = (address) => (address.startsWith("/api/") ? ROOT + address : address);

const SAFE_ADDRESS = /^(?:#|\/(?!\/)|https?:|mailto:|blob:)/i;

/** Return an element. `props`: attributes, those of PROPERTIES as properties; `class`, `dataset`, `style` (custom
 * properties), `on*` listeners and `ref` (called with the element) are what they say. Children: elements, text, arrays;
 * null, undefined and false are left out. An address that could run something is left out, too. */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same for SVG. */
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

/** Append children as `h` takes them. */
export function append(element, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/** Put children in place of what an element has. */
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

/** Call a function once for many calls in a frame. */
export function oncePerFrame(draw) {
  let asked = 0;
  const run = () => {
    asked = 0;
    draw();
  };
  const ask = () => {
    // A page that is not shown gets no frames: what was drawn there would only wait.
    asked ||= document.hidden ? setTimeout(run, 100) : requestAnimationFrame(run);
  };
  ask.cancel = () => {
    cancelAnimationFrame(asked);
    clearTimeout(asked);
    asked = 0;
  };
  return ask;
}

/** Return a function that calls another when it was not called for so many milliseconds. */
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
/** Load a style sheet once; resolves when it is in use, or could not be loaded. */
export function loadStyle(address) {
  if (!address || styles.has(address)) return styles.get(address);
  const loading = new Promise((resolve) =>
    document.head.append(
      h("link", { rel: "stylesheet", href: address.replace(/^\/web\//, FOLDER), onload: resolve, onerror: resolve }),
    ),
  );
  styles.set(address, loading);
  return loading;
}
