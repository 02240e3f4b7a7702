// The questions of a turn for a person: the approval of a call, a form, an action at an address, or a question.

import { h, replace } from "../dom.js";
import { errorText, inWords, loadErrorTexts, loadSentences } from "../errors/text.js";
import { formatDate, t } from "../i18n.js";
import { icon } from "../icons.js";
import { badge, button, checkbox, field, input, notice, select, textarea, toastError } from "../ui.js";

await loadSentences();

/** The card of a wait. `update(wait)` draws it; `wait` has the shape that the reducer of `stream.js` defines.
 *
 * - `answer(wait, action, content)`: sends the answer
 * - `mayAnswer(wait)`: whether the user may answer
 * - `mayAllowAlways`: whether the user may decide that a tool needs no approval in this domain */
export class WaitCard {
  constructor(answer, mayAnswer, mayAllowAlways = false) {
    this.answer = answer;
    this.mayAllowAlways = mayAllowAlways;
    this.mayAnswer = mayAnswer;
    this.element = h("section", { class: "wait", tabindex: -1 });
    this.state = null;
  }

  update(wait) {
    if (this.state === wait.state) return;
    this.state = wait.state;
    this.wait = wait;
    this.element.setAttribute("aria-label", inWords(wait.title) ?? t(`chat.wait.${wait.kind}`));
    if (wait.state === "open") this.#drawOpen();
    else this.#drawAnswered();
  }

  #drawAnswered() {
    const { state, by, title, kind } = this.wait;
    this.element.classList.add("wait-done");
    const words = by ? t(`chat.wait.by.${state}`, { by }) : t(`chat.wait.ended.${state}`);
    replace(
      this.element,
      h(
        "div",
        { class: "row" },
        icon(state === "accept" ? "check" : "close", 16),
        h("span", { class: "strong wrap" }, inWords(title) ?? t(`chat.wait.${kind}`)),
        h("span", { class: "faint small" }, words),
      ),
    );
  }

  #drawOpen() {
    const { wait } = this;
    const mine = this.mayAnswer(wait);
    const head = h(
      "header",
      { class: "wait-head" },
      icon(ICONS[wait.kind] ?? "wait", 18),
      h("h2", { class: "wrap grow wait-title", dir: "auto" }, inWords(wait.title) || t(`chat.wait.${wait.kind}`)),
      badge(t("chat.wait.waiting"), "wait"),
    );
    const from =
      wait.server && wait.kind !== "question"
        ? h(
            "p",
            { class: "faint small" },
            t("chat.wait.from"),
            " ",
            h("code", {}, wait.server),
            wait.toolName && [" › ", h("code", {}, wait.toolName)],
          )
        : null;
    const until = wait.expiresAt
      ? h("p", { class: "faint small" }, t("chat.wait.until", { when: formatDate(wait.expiresAt) }))
      : null;
    const warning = wait.warning ? notice("warn", h("p", {}, inWords(wait.warning))) : null;
    const message = wait.message
      ? h("p", { class: "plain", dir: "auto" }, wait.kind === "question" ? wait.message : inWords(wait.message))
      : null;
    replace(
      this.element,
      head,
      from,
      message,
      warning,
      mine ? this[`_${wait.kind}`]?.(wait) : h("p", { class: "soft" }, t("chat.wait.adminOnly")),
      until,
    );
  }

  async #send(action, content, problem) {
    try {
      await this.answer(this.wait, action, content);
    } catch (error) {
      await loadErrorTexts();
      const isSomebody = error.code === "WAIT_ANSWERED";
      if (isSomebody) toastError(error);
      else {
        problem.textContent = error.code ? errorText(error) : t("shell.failed");
        problem.hidden = false;
      }
    }
  }

  #buttons({ accept, content = () => undefined, decline = t("chat.wait.decline"), hasReason = true, extra }) {
    const problem = h("p", { class: "field-error", role: "alert", hidden: true });
    const reason = input({ placeholder: t("chat.wait.reason"), "aria-label": t("chat.wait.reason"), maxlength: 500 });
    const refuse = () =>
      this.#send("decline", reason.value.trim() ? { reason: reason.value.trim() } : undefined, problem);
    const take = async () => {
      let chosen;
      try {
        chosen = content();
      } catch (error) {
        problem.textContent = error.message;
        problem.hidden = false;
        return;
      }
      await this.#send("accept", chosen, problem);
    };
    return [
      problem,
      h(
        "div",
        { class: "row" },
        button(accept, { kind: "primary", icon: "check", onclick: take }),
        extra?.((content) => this.#send("accept", content, problem)),
        button(decline, { onclick: refuse }),
        hasReason && h("span", { class: "grow wait-reason" }, reason),
      ),
    ];
  }

  _approval(wait) {
    const written = JSON.stringify(wait.arguments ?? {}, null, 2);
    const editor = textarea({
      class: "input mono",
      value: written,
      rows: Math.min(14, written.split("\n").length + 1),
      spellcheck: false,
    });
    const shown = field(t("chat.wait.arguments"), editor, { hint: t("chat.wait.argumentsHint") });
    const read = () => {
      let chosen;
      try {
        chosen = JSON.parse(editor.value);
      } catch (error) {
        shown.setError(t("chat.wait.notJson", { problem: error.message }));
        throw new Error(t("chat.wait.notJson", { problem: error.message }));
      }
      shown.setError("");
      return editor.value === written ? {} : { arguments: chosen };
    };
    const sources = wait.sources ?? [];
    return [
      shown,
      sources.length > 0 &&
        h(
          "div",
          { class: "small soft" },
          h("p", {}, t("chat.wait.sources")),
          h(
            "ul",
            { class: "wait-sources", tabindex: 0 },
            sources.map((source) =>
              h(
                "li",
                { class: "wrap" },
                t(`chat.wait.source.${SOURCES.has(source.kind) ? source.kind : "tool"}`, { name: source.name }),
              ),
            ),
          ),
        ),
      this.#buttons({
        accept: t("chat.wait.approve"),
        content: () => read(),
        extra: (send) => [
          button(t("chat.wait.approveAll"), {
            title: t("chat.wait.approveAllHint"),
            onclick: () => this.#approveIn("conversation", read, send),
          }),
          this.mayAllowAlways &&
            wait.toolName &&
            button(t("chat.wait.allowAlways"), {
              title: t("chat.wait.allowAlwaysHint"),
              onclick: () => this.#approveIn("domain", read, send),
            }),
        ],
      }),
    ];
  }

  /** Approve the call, and later calls of its tool in the conversation or in the domain. */
  async #approveIn(scope, read, send) {
    let chosen;
    try {
      chosen = read();
    } catch {
      return; // the field shows the error
    }
    await send({ ...chosen, scope });
  }

  _form(wait) {
    const form = schemaForm(wait.schema ?? {});
    return [form.element, this.#buttons({ accept: t("chat.wait.submit"), content: () => form.read() })];
  }

  _url(wait) {
    const link = h(
      "a",
      { class: "button button-primary", href: wait.url, target: "_blank", rel: "noopener noreferrer" },
      icon("link", 16),
      t("chat.wait.openAddress"),
    );
    return [
      h("p", { class: "wait-address mono wrap" }, wait.url),
      h("div", { class: "row" }, /^https?:/i.test(wait.url ?? "") && link),
      this.#buttons({ accept: t("chat.wait.finished") }),
    ];
  }

  _function(wait) {
    const problem = h("p", { class: "field-error", role: "alert", hidden: true });
    return [
      h("pre", { class: "mono wrap small" }, JSON.stringify(wait.arguments ?? {}, null, 2)),
      problem,
      h(
        "div",
        { class: "row" },
        button(t("chat.wait.without"), { onclick: () => this.#send("decline", undefined, problem) }),
      ),
    ];
  }

  _question(wait) {
    const name = `question-${wait.waitId}`;
    const options = (wait.options ?? []).map(({ value, title }) => {
      const control = h("input", { type: wait.multiple ? "checkbox" : "radio", name, value, class: "checkbox" });
      return {
        value,
        control,
        element: h("label", { class: "option" }, control, h("span", { class: "wrap", dir: "auto" }, title ?? value)),
      };
    });
    const ownAnswer = textarea({ rows: 2, maxlength: 10_000 });
    const content = () => {
      const choices = options.filter(({ control }) => control.checked).map(({ value }) => value);
      const text = ownAnswer.value.trim();
      if (!choices.length && !text) throw new Error(t("chat.wait.sayOrChoose"));
      return { ...(choices.length ? { choices } : {}), ...(text ? { text } : {}) };
    };
    return [
      options.length > 0 &&
        h(
          "div",
          {
            class: "stack-small",
            role: wait.multiple ? "group" : "radiogroup",
            "aria-label": wait.title ?? wait.message,
          },
          options.map(({ element }) => element),
        ),
      field(t(options.length ? "chat.wait.ownAnswer" : "chat.wait.answer"), ownAnswer),
      this.#buttons({ accept: t("chat.wait.submit"), content, decline: t("chat.wait.skip"), hasReason: false }),
    ];
  }
}

const SOURCES = new Set(["delegate", "description", "document", "memory", "tool"]);
const ICONS = { approval: "shield", form: "list", url: "key", question: "chat", function: "wait" };

/** Return a form for a flat JSON schema: `{element, read()}`. `read` raises an Error if the value of a field is
 * invalid. */
export function schemaForm(schema) {
  const required = new Set(schema.required ?? []);
  const fields = Object.entries(schema.properties ?? {}).map(([name, property]) =>
    schemaField(name, property, required.has(name)),
  );
  return {
    element: h(
      "div",
      { class: "stack" },
      fields.map(({ element }) => element),
    ),
    read() {
      const values = {};
      let wrong = null;
      for (const field of fields) {
        const { value, problem } = field.read();
        field.element.setError?.(problem ?? "");
        if (problem) wrong ??= `${field.label}: ${problem}`;
        else if (value !== undefined) values[field.name] = value;
      }
      if (wrong) throw new Error(wrong);
      return values;
    },
  };
}

const HTML_TYPES = { email: "email", uri: "url", date: "date", "date-time": "datetime-local" };

function schemaField(name, schema, isRequired) {
  const label = (schema.title ?? name) + (isRequired ? " *" : "");
  const hint = schema.description ?? "";
  const choices = choicesOf(schema);
  if (schema.type === "boolean") {
    const control = checkbox({ checked: schema.default === true });
    return {
      name,
      label,
      element: field(label, control, { hint, inline: true }),
      read: () => ({ value: control.checked }),
    };
  }
  if (schema.type === "array") return arrayField(name, label, schema, hint, isRequired);
  if (choices) {
    const control = select(
      [...(isRequired && schema.default !== undefined ? [] : [["", t("chat.wait.choose")]]), ...choices],
      { value: schema.default ?? "" },
    );
    return {
      name,
      label,
      element: field(label, control, { hint }),
      read: () => (control.value === "" ? missing(isRequired) : { value: control.value }),
    };
  }
  const isNumber = schema.type === "number" || schema.type === "integer";
  const control = input({
    type: isNumber ? "number" : (HTML_TYPES[schema.format] ?? "text"),
    value: schema.default ?? "",
    step: schema.type === "integer" ? 1 : isNumber ? "any" : null,
    min: schema.minimum,
    max: schema.maximum,
    maxlength: schema.maxLength,
  });
  const read = () => {
    const text = control.value.trim();
    if (!text) return missing(isRequired);
    if (!control.checkValidity()) return { problem: control.validationMessage };
    if (isNumber) return { value: Number(text) };
    return { value: schema.format === "date-time" ? new Date(text).toISOString() : text };
  };
  return { name, label, element: field(label, control, { hint }), read };
}

function arrayField(name, label, schema, hint, isRequired) {
  const boxes = (choicesOf(schema.items ?? {}) ?? []).map(([value, title]) => {
    const control = checkbox({ value, checked: (schema.default ?? []).includes(value) });
    return { value, control, element: h("label", { class: "option" }, control, h("span", { class: "wrap" }, title)) };
  });
  const problem = h("p", { class: "field-error", role: "alert", hidden: true });
  const element = h(
    "fieldset",
    { class: "field fieldset" },
    h("legend", {}, label),
    boxes.map((box) => box.element),
    hint && h("p", { class: "field-hint" }, hint),
    problem,
  );
  element.setError = (text) => {
    problem.textContent = text;
    problem.hidden = !text;
  };
  return {
    name,
    label,
    element,
    read() {
      const value = boxes.filter(({ control }) => control.checked).map((box) => box.value);
      return isRequired && !value.length ? missing(true) : { value };
    },
  };
}

const missing = (isRequired) => (isRequired ? { problem: t("chat.wait.missing") } : { value: undefined });

function choicesOf(schema) {
  const listed = schema.oneOf ?? schema.anyOf;
  if (listed?.every((option) => "const" in option))
    return listed.map((option) => [option.const, option.title ?? String(option.const)]);
  return schema.enum?.map((value, at) => [value, schema.enumNames?.[at] ?? String(value)]) ?? null;
}
