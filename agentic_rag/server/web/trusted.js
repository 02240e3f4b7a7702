// The one place where text becomes HTML: what the server rendered and sanitised (`html` of messages, `/api/render`).

import { ROOT } from "./dom.js";

const STYLED_CELL = /<(t[dh]) style="text-align: ?(left|right|center);?"/g;

const OWN_IMAGE = /(<img [^>]*?src=")(?=\/api\/)/g;

// The policy of the page forbids style attributes; the only one the server leaves in becomes a class. In sanitised HTML
// a `<` begins a tag, so that these expressions find no text.
const createHTML = (html) => html.replace(STYLED_CELL, '<$1 class="align-$2"').replace(OWN_IMAGE, `$1${ROOT}`);

const policy = globalThis.trustedTypes?.createPolicy("console", { createHTML }) ?? { createHTML };

/** Show HTML that the server sanitised inside an element. Links open beside the page. */
export function showHtml(element, html) {
  element.innerHTML = policy.createHTML(html);
  for (const link of element.querySelectorAll("a[href]")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
  }
  for (const table of element.querySelectorAll("table")) {
    const frame = document.createElement("div");
    frame.className = "table-frame";
    frame.tabIndex = 0;
    frame.setAttribute("role", "group");
    table.replaceWith(frame);
    frame.append(table);
  }
  for (const code of element.querySelectorAll("pre")) code.tabIndex = 0; // long lines are scrolled by keyboard, too
  for (const image of element.querySelectorAll("img")) image.loading = "lazy";
  return element;
}
