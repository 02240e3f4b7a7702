// A text editor with line numbers and marks, for JSON and the source of roles. It is a textarea, so that editing, undo
// and screen readers work as in any other field.

import { h, newId, oncePerFrame, replace } from "../dom.js";
import { t } from "../i18n.js";

const LINE = 20;
const PADDING = 10;

/** Return an editor: an element with `value`, `setMarks(marks)`, `goTo(line, column)` and `area`, its textarea. Marks
 * are shown beside the lines and in a list below the text. A mark in the list is a button that goes to its place.
 *
 * - `label`: the name of the text for a screen reader.
 * - `marks`: a list of `{line, column, severity: error | warning | info, message, hint?}`.
 * - `oninput(value)`: called when the user types. */
export function sourceEditor(label, { value = "", rows = 16, readOnly = false, oninput } = {}) {
  const numbers = h("div", { class: "lines-numbers", "aria-hidden": "true" });
  const id = newId("lines");
  const markList = h("ul", { class: "lines-marks", id: `${id}-marks`, "aria-label": t("domain.marks") });
  const area = h("textarea", {
    class: "lines-area mono",
    id,
    wrap: "off",
    rows,
    readOnly,
    spellcheck: "false",
    autocapitalize: "off",
    autocomplete: "off",
    dir: "ltr",
    "aria-label": label,
    "aria-describedby": markList.id,
  });
  let marks = [];
  const draw = oncePerFrame(() => {
    const count = area.value.split("\n").length;
    const worst = new Map();
    for (const mark of marks) if (worst.get(mark.line) !== "error") worst.set(mark.line, mark.severity);
    const lines = Array.from({ length: count }, (_, at) =>
      h("div", { class: worst.has(at + 1) ? `lines-number mark-${worst.get(at + 1)}` : "lines-number" }, at + 1),
    );
    replace(numbers, lines);
    numbers.scrollTop = area.scrollTop;
  });
  area.addEventListener("scroll", () => (numbers.scrollTop = area.scrollTop));
  area.addEventListener("input", () => {
    draw();
    oninput?.(area.value);
  });
  area.addEventListener("keydown", (event) => {
    // Tab inserts two spaces. After Escape, at the beginning of the text, or with a selection, it moves the focus.
    if (event.key === "Escape") area.dataset.leaves = "yes";
    else if (
      event.key === "Tab" &&
      !event.shiftKey &&
      !event.ctrlKey &&
      !event.altKey &&
      !area.dataset.leaves &&
      !area.readOnly &&
      area.selectionStart === area.selectionEnd &&
      area.selectionStart > 0
    ) {
      event.preventDefault();
      area.setRangeText("  ", area.selectionStart, area.selectionEnd, "end");
      area.dispatchEvent(new Event("input"));
    } else if (event.key !== "Shift") delete area.dataset.leaves;
  });
  area.addEventListener("blur", () => delete area.dataset.leaves);
  const element = h("div", { class: "lines" }, h("div", { class: "lines-frame" }, numbers, area), markList);
  element.area = area;
  Object.defineProperty(element, "value", {
    get: () => area.value,
    set: (text) => {
      area.value = text;
      draw();
    },
  });
  element.goTo = (line, column = 1) => {
    const lines = area.value.split("\n");
    const before = lines.slice(0, line - 1).reduce((sum, line) => sum + line.length + 1, 0);
    const at = Math.min(before + column - 1, area.value.length);
    area.focus();
    area.setSelectionRange(at, Math.min(before + (lines[line - 1]?.length ?? 0), area.value.length));
    area.scrollTop = Math.max(0, (line - 4) * LINE + PADDING);
  };
  element.setMarks = (newMarks) => {
    marks = newMarks;
    area.setAttribute("aria-invalid", String(marks.some((mark) => mark.severity === "error")));
    replace(
      markList,
      marks.map((mark) => h("li", {}, markButton(mark, element.goTo))),
    );
    markList.hidden = !marks.length;
    draw();
  };
  element.value = value;
  element.setMarks([]);
  return element;
}

function markButton({ line, column, severity, message, hint }, goTo) {
  return h(
    "button",
    { type: "button", class: `lines-mark mark-${severity}`, onclick: () => goTo(line, column) },
    h("span", { class: "lines-place mono" }, `${line}:${column}`),
    h("span", { class: "visually-hidden" }, t(`domain.severity.${severity}`)),
    h("span", { class: "grow" }, message, hint && h("span", { class: "faint" }, ` ${hint}`)),
  );
}
