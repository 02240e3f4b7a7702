// The only module that turns text into HTML: the HTML that the server rendered and sanitised (`html` of messages,
// `/api/render`).

import { ROOT } from "./dom.js";

const STYLED_CELL = /<(t[dh]) style="text-align: ?(left|right|center);?"/g;

const OWN_IMAGE = /(<img [^>]*?src=")(?=\/api\/)/g;

// The content security policy of the page forbids style attributes. The only one that the server keeps is replaced by a
// class. In sanitised HTML, a `<` always begins a tag, so these expressions never match text.
const createHTML = (html) => html.replace(STYLED_CELL, '<$1 class="align-$2"').replace(OWN_IMAGE, `$1${ROOT}`);

const policy = globalThis.trustedTypes?.createPolicy("console", { createHTML }) ?? { createHTML };

/** Show HTML that the server sanitised inside an element. Links open in a new tab. */
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
  for (const code of element.querySelectorAll("pre")) code.tabIndex = 0; // so that the keyboard can scroll long lines
  for (const image of element.querySelectorAll("img")) image.loading = "lazy";
  return element;
}
