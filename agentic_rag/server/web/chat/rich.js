// Makes the server's HTML of an answer interactive: copy buttons for code, links to footnotes, citations that open by
// keyboard, and diagrams.

import { h, replace } from "../dom.js";
import { formatNumber, t } from "../i18n.js";
import { button, copyButton, isDark } from "../ui.js";

const NAMES = {
  bash: "Shell",
  c: "C",
  "c++": "C++",
  cpp: "C++",
  cs: "C#",
  csharp: "C#",
  css: "CSS",
  diff: "Diff",
  dockerfile: "Dockerfile",
  go: "Go",
  html: "HTML",
  ini: "INI",
  java: "Java",
  javascript: "JavaScript",
  js: "JavaScript",
  json: "JSON",
  jsx: "JSX",
  kotlin: "Kotlin",
  latex: "LaTeX",
  lua: "Lua",
  php: "PHP",
  powershell: "PowerShell",
  py: "Python",
  python: "Python",
  rb: "Ruby",
  ruby: "Ruby",
  rs: "Rust",
  rust: "Rust",
  sh: "Shell",
  shell: "Shell",
  sql: "SQL",
  swift: "Swift",
  toml: "TOML",
  ts: "TypeScript",
  tsx: "TSX",
  typescript: "TypeScript",
  xml: "XML",
  yaml: "YAML",
  yml: "YAML",
};
const MOST_DIAGRAM = 10_000;
const DRAW_MS = 20_000;
let notes = 0;

const BLOCKS = "p, ul, ol, dl, h1, h2, h3, h4, h5, h6, blockquote, table";

/** Make rendered Markdown inside an element interactive. */
export function enrich(element) {
  for (const block of element.querySelectorAll(BLOCKS)) {
    // Blocks in Arabic, with their bullets, begin at the right. A nested block has the direction of the outer one.
    if (!block.parentElement.closest("blockquote, li, table")) block.dir = "auto";
  }
  for (const mark of element.querySelectorAll("sup.citation")) enrichCitation(mark);
  for (const code of element.querySelectorAll("pre > code")) enrichCode(code);
  linkFootnotes(element);
  return element;
}

function enrichCitation(mark) {
  const number = Number(mark.dataset.number);
  mark.textContent = formatNumber(number);
  mark.tabIndex = 0;
  mark.setAttribute("role", "button");
  mark.setAttribute("aria-label", t("chat.openSource", { number, name: mark.title }));
  mark.before("\u2060"); // prevents a line break before the citation
}

function enrichCode(code) {
  const frame = code.parentElement;
  const language = /^language-(.+)$/.exec(code.className)?.[1].toLowerCase() ?? "";
  if (language === "mermaid" && code.textContent.length <= MOST_DIAGRAM)
    return void frame.replaceWith(diagram(code.textContent));
  const text = () => [...code.childNodes].map(textWithoutMarks).join("");
  const box = h("div", { class: "code-box" });
  frame.replaceWith(box);
  box.append(
    h(
      "div",
      { class: "code-head" },
      h("span", {}, NAMES[language] ?? language),
      copyButton(t("chat.copy"), text, { compact: false }),
    ),
    frame,
  );
}

const textWithoutMarks = (node) =>
  node.nodeType === Node.TEXT_NODE
    ? node.data.replaceAll("\u2060", "")
    : node.classList.contains("citation")
      ? ""
      : [...node.childNodes].map(textWithoutMarks).join("");

/** Link references and footnotes to each other. Several answers on the page may use the same ids, so each note gets a
 * new one. */
function linkFootnotes(element) {
  for (const note of element.querySelectorAll(".footnotes li[data-note]")) {
    notes += 1;
    const references = [...element.querySelectorAll(`sup.footnote[data-note="${CSS.escape(note.dataset.note)}"]`)];
    note.id = `note-${notes}`;
    note.tabIndex = -1;
    references.forEach((reference, at) => {
      reference.id = `note-${notes}-${at + 1}`;
      // The reference stays an inline element, because a browser may break the line before a button.
      Object.assign(reference, {
        tabIndex: 0,
        role: "button",
        ariaLabel: t("chat.footnote", { number: Number(note.dataset.note) }),
      });
      reference.classList.add("note-link");
      reference.before("\u2060");
      reference.addEventListener("click", () => goTo(note));
      reference.addEventListener(
        "keydown",
        (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), goTo(note)),
      );
    });
    if (references.length)
      (note.querySelector("p:last-of-type") ?? note).append(
        " ",
        h(
          "button",
          {
            type: "button",
            class: "note-link",
            "aria-label": t("chat.footnoteBack"),
            onclick: () => goTo(references[0]),
          },
          "↩",
        ),
      );
  }
}

function goTo(element) {
  element.scrollIntoView({ block: "center" });
  element.focus({ preventScroll: true });
}

/** Return a Mermaid diagram. A frame without an origin draws it, so that its source can neither read nor load
 * anything. */
function diagram(code) {
  const source = h("pre", { tabindex: 0, hidden: true }, h("code", {}, code));
  const place = h("div", { class: "diagram-place", tabindex: 0, role: "group", "aria-label": t("chat.diagram") });
  const note = h("span", { class: "faint small", role: "status" });
  const toggle = button(t("chat.diagramSource"), {
    kind: "quiet",
    class: "button button-quiet button-small",
    "aria-pressed": "false",
    onclick: () => show(source.hidden),
  });
  const show = (isSource) => {
    source.hidden = !isSource;
    place.hidden = isSource;
    toggle.setAttribute("aria-pressed", String(isSource));
  };
  const figure = h(
    "figure",
    { class: "diagram" },
    place,
    source,
    h("figcaption", {}, note, h("span", { class: "grow" }), copyButton(t("chat.copy"), code), toggle),
  );
  const fail = (why) => {
    end();
    note.textContent = why ? t("chat.diagramFailed", { why }) : t("chat.diagramSlow");
    replace(place);
    show(true);
    toggle.hidden = true;
  };
  let timer;
  const end = () => {
    clearTimeout(timer);
    removeEventListener("message", hear);
  };
  const frame = h("iframe", {
    class: "diagram-frame",
    title: t("chat.diagram"),
    sandbox: "allow-scripts",
    src: new URL("../diagram.html", import.meta.url).href,
  });
  const hear = ({ source: from, data }) => {
    if (from !== frame.contentWindow) return;
    if (data?.ready) frame.contentWindow.postMessage({ code, dark: isDark() }, "*");
    else if (data?.error) fail(String(data.error).split("\n")[0].slice(0, 200));
    else if (data?.height > 0) {
      clearTimeout(timer);
      place.style.setProperty("--ratio", `${Math.max(1, Number(data.width))} / ${Math.max(1, Number(data.height))}`);
      place.style.setProperty("--most", `${Math.max(1, Number(data.width))}px`);
      place.classList.add("diagram-drawn");
    }
  };
  // The frame and its script of a megabyte are loaded once the diagram comes near the visible part.
  new IntersectionObserver(
    ([entry], observer) => {
      if (!entry.isIntersecting) return;
      observer.disconnect();
      addEventListener("message", hear);
      timer = setTimeout(fail, DRAW_MS);
      replace(place, frame);
    },
    { rootMargin: "300px" },
  ).observe(place);
  return figure;
}
