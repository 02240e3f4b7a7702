// The form fields of the settings. The schema from the server determines the kind of each field.

import { h, replace } from "../dom.js";
import { formatNumber, hasWords, t } from "../i18n.js";
import { button, checkbox, field, input, select, textarea } from "../ui.js";

/** The groups of settings in their order. A setting that is in no group is shown last, so that none is hidden. */
export const GROUPS = [
  ["voice", ["responseStyle", "tone", "language", "expertise"]],
  ["roles", ["primaryRoleId", "subRoleIds"]],
  ["model", ["model", "allowedModels", "fallbackModel", "maxTokens", "temperature", "thinking", "effort"]],
  ["access", ["groupLabels", "folderLabels"]],
  [
    "retrieval",
    [
      "retrievalTopK",
      "retrievalThreshold",
      "retrievalTokens",
      "retrievalFusion",
      "retrievalPreferNewer",
      "reranker",
      "contextLines",
      "scans",
    ],
  ],
  ["start", ["starters"]],
  ["tools", ["toolPolicy", "mcpApps", "askUser", "answerLinks", "variables"]],
  ["limits", ["maxSteps", "turnTimeoutSeconds", "toolTimeoutSeconds", "contextTokens", "contextMessages"]],
  ["memory", ["memoryScope", "memory", "keepConversationsDays"]],
  ["evaluation", ["evaluation"]],
];

/** Return the groups with the settings that the schema has. */
export function groupsOf(schema) {
  const grouped = new Set(GROUPS.flatMap(([, keys]) => keys));
  const others = Object.keys(schema.properties).filter((key) => !grouped.has(key));
  const groups = GROUPS.map(([name, keys]) => [name, keys.filter((key) => key in schema.properties)]);
  return others.length ? [...groups, ["others", others]] : groups;
}

/** Return the schema of a setting without the alternative `null` and with references resolved. */
function boundsOf(schema, key) {
  const property = schema.properties[key];
  const alternatives = (property.anyOf ?? [property])
    .filter((alternative) => alternative.type !== "null")
    .map((alternative) => (alternative.$ref ? { ...schema.$defs[alternative.$ref.split("/").at(-1)] } : alternative));
  return {
    ...alternatives[0],
    alternatives: alternatives,
    default: property.default ?? null,
    nullable: property.anyOf?.some((alternative) => alternative.type === "null") ?? false,
  };
}

/** Return the value to store. An empty value, or one equal to the default, is null, so that the setting follows the
 * default. */
function countingValue(value, bounds) {
  if (value === undefined || value === null || value === "") return null;
  if (typeof value === "object" && !Object.keys(value).length) return null;
  return JSON.stringify(value) === JSON.stringify(bounds.default) ? null : value;
}

const numberHint = ({ minimum, maximum }) => {
  if (minimum === undefined && maximum === undefined) return "";
  return t("settings.between", {
    least: formatNumber(minimum ?? 0),
    most: maximum === undefined ? "∞" : formatNumber(maximum),
  });
};

const camel = (word) => word.replace(/-(\w)/g, (_, letter) => letter.toUpperCase());
const labelOf = (key) => (hasWords(`settings.label.${key}`) ? t(`settings.label.${key}`) : key);
const hintOf = (key) => (hasWords(`settings.hint.${key}`) ? t(`settings.hint.${key}`) : "");
const wordOf = (value) => {
  const key = `settings.value.${camel(String(value))}`;
  return hasWords(key) ? t(key) : String(value);
};

/** Return the field of a setting: an element with `read()`, `write(value)`, `counting(value)`, `setError` and `key`.
 * `read()` returns null if the setting follows the default.
 *
 * - `roles`: the roles of the domain.
 * - `onchange()`: called on each change. */
export function settingField(schema, key, { roles, onchange }) {
  const bounds = boundsOf(schema, key);
  const make = SPECIAL[key] ?? BY_TYPE[bounds.enum ? "enum" : bounds.type] ?? jsonField;
  if (key === "memory") bounds.default = MEMORY_DEFAULT;
  if (key === "evaluation") bounds.default = EVALUATION_DEFAULT;
  if (key === "scans") bounds.default = SCANS_DEFAULT;
  const element = make(key, bounds, { roles, onchange });
  const { read, write } = element;
  element.read = () => countingValue(read(), bounds);
  element.write = (value) => write(countingValue(value, bounds));
  element.counting = (value) => countingValue(value, bounds);
  element.key = key;
  element.classList.add("setting");
  return element;
}

function finish(element, bounds, read, write) {
  Object.assign(element, { read, write });
  return element;
}

const named = (key, control, bounds, extraHint = "") =>
  field(labelOf(key), control, { hint: [hintOf(key), extraHint, defaultHint(bounds)].filter(Boolean).join(" ") });

function defaultHint({ default: value }) {
  if (value === null || value === "" || (Array.isArray(value) && !value.length)) return "";
  return typeof value === "object"
    ? ""
    : t("settings.default", { value: typeof value === "number" ? formatNumber(value) : wordOf(value) });
}

function enumField(key, bounds, { onchange }) {
  const none =
    bounds.default === null ? t("settings.operators") : t("settings.defaultOption", { value: wordOf(bounds.default) });
  const control = select([["", none], ...bounds.enum.map((value) => [value, wordOf(value)])], { onchange });
  const element = field(labelOf(key), control, { hint: hintOf(key) });
  return finish(
    element,
    bounds,
    () => control.value || null,
    (value) => (control.value = value ?? ""),
  );
}

function numberField(key, bounds, { onchange }) {
  const whole = bounds.type === "integer";
  const control = input({
    type: "number",
    min: bounds.minimum,
    max: bounds.maximum,
    step: whole ? 1 : "any",
    placeholder: bounds.default === null ? t("settings.none") : formatNumber(bounds.default, { useGrouping: false }),
    oninput: onchange,
    inputmode: whole ? "numeric" : "decimal",
  });
  const element = named(key, control, bounds, numberHint(bounds));
  const read = () => {
    if (control.value === "") return null;
    return Number(control.value);
  };
  return finish(element, bounds, read, (value) => (control.value = value ?? ""));
}

function textField(key, bounds, { onchange }) {
  const long = (bounds.maxLength ?? 0) >= 1000;
  const props = {
    maxlength: bounds.maxLength,
    oninput: onchange,
    dir: "auto",
    placeholder: typeof bounds.default === "string" && bounds.default ? bounds.default : "",
  };
  const control = long ? textarea({ ...props, rows: 3 }) : input(props);
  const element = named(key, control, bounds, long ? t("settings.atMost", { count: bounds.maxLength }) : "");
  return finish(
    element,
    bounds,
    () => control.value || null,
    (value) => (control.value = value ?? ""),
  );
}

function booleanField(key, bounds, { onchange }) {
  const control = checkbox({ onchange });
  const element = field(labelOf(key), control, { hint: hintOf(key), inline: true });
  return finish(
    element,
    bounds,
    () => (control.checked === bounds.default ? null : control.checked),
    (value) => (control.checked = value ?? bounds.default),
  );
}

function jsonField(key, bounds, { onchange }) {
  const control = textarea({ rows: 3, class: "input mono", oninput: onchange, spellcheck: "false", dir: "ltr" });
  const element = named(key, control, bounds);
  const read = () => {
    if (!control.value.trim()) return null;
    try {
      return JSON.parse(control.value);
    } catch {
      return control.value; // the server reports the error
    }
  };
  return finish(
    element,
    bounds,
    read,
    (value) => (control.value = value === null || value === undefined ? "" : JSON.stringify(value, null, 2)),
  );
}

// Fields for particular settings

function roleField(key, bounds, { roles, onchange }) {
  const control = select(
    [
      ["", t("settings.defaultOption", { value: bounds.default })],
      ...roles.map((role) => [role.id, role.title && role.title !== role.id ? `${role.id} — ${role.title}` : role.id]),
    ],
    { onchange },
  );
  const element = field(labelOf(key), control, { hint: hintOf(key) });
  const write = (value) => {
    if (value && !roles.some((role) => role.id === value))
      control.append(h("option", { value }, t("settings.missingRole", { role: value })));
    control.value = value ?? "";
  };
  return finish(element, bounds, () => control.value || null, write);
}

function rolesField(key, bounds, { roles, onchange }) {
  const boxes = new Map();
  const group = h(
    "fieldset",
    { class: "setting-group" },
    h("legend", {}, labelOf(key)),
    h("p", { class: "field-hint" }, hintOf(key)),
  );
  const list = h("div", { class: "checks" });
  const error = h("p", { class: "field-error", role: "alert", hidden: true });
  group.append(list, error);
  const add = (id, title) => {
    const box = checkbox({ onchange });
    boxes.set(id, box);
    list.append(field(title && title !== id ? `${id} — ${title}` : id, box, { inline: true }));
  };
  for (const role of roles) add(role.id, role.title);
  group.setError = (text) => {
    error.textContent = text;
    error.hidden = !text;
  };
  const read = () => {
    const chosen = [...boxes].filter(([, box]) => box.checked).map(([id]) => id);
    return chosen.length ? chosen : null;
  };
  const write = (value) => {
    for (const id of value ?? []) if (!boxes.has(id)) add(id, t("settings.missingRole", { role: id }));
    for (const [id, box] of boxes) box.checked = value?.includes(id) ?? false;
  };
  return finish(group, bounds, read, write);
}

function namesField(key, bounds, { onchange }) {
  const control = textarea({ rows: 2, class: "input mono", oninput: onchange, spellcheck: "false", dir: "ltr" });
  const element = named(key, control, bounds);
  const read = () => {
    const lines = control.value
      .split("\n")
      .map((line) => line.trim())
      .filter(Boolean);
    return lines.length > 1 ? lines : (lines[0] ?? null);
  };
  return finish(element, bounds, read, (value) => (control.value = [value ?? []].flat().join("\n")));
}

/** Return a field for a list of texts, one per line. */
function linesField(key, bounds, { onchange }) {
  const control = textarea({ rows: 4, oninput: onchange, dir: "auto" });
  const element = named(key, control, bounds);
  return finish(
    element,
    bounds,
    () =>
      control.value
        .split("\n")
        .map((line) => line.trim())
        .filter(Boolean),
    (value) => (control.value = (value ?? []).join("\n")),
  );
}

/** Return a field for a map: rows with a name and a value. `cell(value, onchange)` returns the control of a value,
 * `{element, read()}`. */
function mapField(key, bounds, { onchange }, cell, namePlaceholder) {
  const rows = h("div", { class: "map-rows" });
  const error = h("p", { class: "field-error", role: "alert", hidden: true });
  const element = h(
    "fieldset",
    { class: "setting-group" },
    h("legend", {}, labelOf(key)),
    h("p", { class: "field-hint" }, hintOf(key)),
    rows,
    h("div", {}, button(t("settings.addRow"), { icon: "add", onclick: () => add("", undefined).focus() })),
    error,
  );
  const parts = new Set();
  const add = (name, value) => {
    const named = input({
      value: name,
      placeholder: namePlaceholder,
      "aria-label": t("settings.rowName", { label: labelOf(key) }),
      class: "input mono",
      oninput: onchange,
      dir: "ltr",
    });
    const control = cell(value, onchange);
    const part = { named, control };
    const row = h(
      "div",
      { class: "map-row" },
      named,
      control.element,
      button(t("settings.removeRow"), {
        kind: "quiet",
        icon: "close",
        compact: true,
        onclick: () => (parts.delete(part), row.remove(), onchange()),
      }),
    );
    parts.add(part);
    rows.append(row);
    return named;
  };
  element.setError = (text) => {
    error.textContent = text;
    error.hidden = !text;
  };
  const read = () => {
    const entries = [...parts]
      .map(({ named, control }) => [named.value.trim(), control.read()])
      .filter(([name]) => name);
    return entries.length ? Object.fromEntries(entries) : null;
  };
  const write = (value) => {
    parts.clear();
    replace(rows);
    for (const [name, item] of Object.entries(value ?? {})) add(name, item);
  };
  return finish(element, bounds, read, write);
}

const VERDICTS = ["allow", "ask", "ask-admin", "deny"];
const GRANTS = ["member", "author", "admin"];

function policyField(key, bounds, tools) {
  const cell = (value, onchange) => {
    const byGrant = value !== null && typeof value === "object" ? value : null;
    const options = [
      ...VERDICTS.map((verdict) => [verdict, t(`settings.verdict.${camel(verdict)}`)]),
      ["", t("settings.byGrant")],
    ];
    const grants = h("div", { class: "grant-rules" });
    const picks = new Map();
    const everyVerdict = select(options, {
      "aria-label": t("settings.verdict"),
      onchange: () => (drawGrants(), onchange()),
    });
    const drawGrants = () => {
      grants.hidden = everyVerdict.value !== "";
      if (grants.hidden || picks.size) return;
      for (const grant of GRANTS) {
        const pick = select([["", t("settings.noRule")], ...options.slice(0, -1)], {
          value: byGrant?.[grant] ?? "",
          onchange,
        });
        picks.set(grant, pick);
        grants.append(field(t(`settings.grant.${grant}`), pick, { inline: true }));
      }
    };
    everyVerdict.value = byGrant ? "" : (value ?? "ask");
    drawGrants();
    const read = () =>
      everyVerdict.value ||
      Object.fromEntries([...picks].map(([grant, pick]) => [grant, pick.value]).filter(([, pick]) => pick));
    return { element: h("div", { class: "grow" }, everyVerdict, grants), read };
  };
  return mapField(key, bounds, tools, cell, "github__*");
}

/** Return a field for rows of a group or a path, with its labels separated by commas. */
function labelsField(key, bounds, tools) {
  const cell = (value, onchange) => {
    const control = input({
      value: (value ?? []).join(", "),
      placeholder: t("settings.labels"),
      "aria-label": t("settings.rowValue", { label: labelOf(key) }),
      oninput: onchange,
      dir: "auto",
    });
    return { element: control, read: () => labelsIn(control.value) };
  };
  return mapField(key, bounds, tools, cell, key === "folderLabels" ? "hr, *-salaries.xlsx" : "");
}

/** Return the labels in a text that separates them by commas. */
export const labelsIn = (text) =>
  text
    .split(",")
    .map((label) => label.trim())
    .filter(Boolean);

function variablesField(key, bounds, tools) {
  const cell = (value, onchange) => {
    const control = input({
      value: value ?? "",
      "aria-label": t("settings.rowValue", { label: labelOf(key) }),
      oninput: onchange,
      dir: "auto",
    });
    return { element: control, read: () => control.value };
  };
  return mapField(key, bounds, tools, cell, "NAME");
}

const MEMORY_DEFAULT = { extract: "off", callsPerDay: 50 };

function memoryField(key, bounds, { onchange }) {
  const when = select(
    ["off", "after-turn", "every"].map((mode) => [mode, t(`settings.extract.${camel(mode)}`)]),
    { onchange: () => (draw(), onchange()) },
  );
  const every = field(
    t("settings.extractEvery"),
    input({ type: "number", min: 1, max: 100, value: 5, oninput: onchange }),
  );
  const calls = field(
    t("settings.callsPerDay"),
    input({ type: "number", min: 1, max: 1000, placeholder: "50", oninput: onchange }),
    { hint: t("settings.hint.callsPerDay") },
  );
  const extract = field(t("settings.extract"), when, { hint: hintOf(key) });
  const element = h("div", { class: "stack-small" }, extract, every, calls);
  const draw = () => {
    every.hidden = when.value !== "every";
    calls.hidden = when.value === "off";
  };
  element.setError = extract.setError;
  const read = () => {
    const value = {};
    if (when.value !== "off") value.extract = when.value === "every" ? Number(every.control.value) : when.value;
    if (when.value !== "off" && calls.control.value) value.callsPerDay = Number(calls.control.value);
    return Object.keys(value).length ? value : null;
  };
  const write = (value) => {
    const mode = value?.extract ?? "off";
    when.value = typeof mode === "number" ? "every" : mode;
    if (typeof mode === "number") every.control.value = mode;
    calls.control.value = value?.callsPerDay ?? "";
    draw();
  };
  return finish(element, bounds, read, write);
}

const SCANS_DEFAULT = { reader: "ocr", pages: 50 };

function scansField(key, bounds, { onchange }) {
  const reader = field(
    t("settings.scanReader"),
    select(
      ["ocr", "model"].map((reader) => [reader, t(`settings.scanReader.${reader}`)]),
      { onchange: () => (draw(), onchange()) },
    ),
    { hint: hintOf(key) },
  );
  const pages = field(
    t("settings.scanPages"),
    input({ type: "number", min: 1, max: 1000, placeholder: "50", oninput: onchange }),
    { hint: t("settings.hint.scanPages") },
  );
  const element = h("div", { class: "stack-small" }, reader, pages);
  const draw = () => (pages.hidden = reader.control.value !== "model");
  element.setError = reader.setError;
  const read = () => {
    if (reader.control.value !== "model") return null;
    return { reader: "model", ...(pages.control.value ? { pages: Number(pages.control.value) } : {}) };
  };
  const write = (value) => {
    reader.control.value = value?.reader ?? "ocr";
    pages.control.value = (value?.pages ?? SCANS_DEFAULT.pages) === SCANS_DEFAULT.pages ? "" : value.pages;
    draw();
  };
  return finish(element, bounds, read, write);
}

const EVALUATION_DEFAULT = {
  gate: {},
  answers: false,
  nightly: null,
  repeats: 1,
  maxTokens: 2_000_000,
  judge: {},
  judgeModel: null,
  judgeBatch: false,
};
const CHANGE_KINDS = ["settings", "prompt", "roles", "model", "reranker", "embedder", "reindex", "removal"];

function evaluationField(key, bounds, { onchange }) {
  const modes = CHANGE_KINDS.map((kind) => [
    kind,
    field(
      t(`settings.change.${kind}`),
      select(
        ["hold", "warn", "off"].map((mode) => [mode, t(`settings.gate.${mode}`)]),
        { onchange },
      ),
    ),
  ]);
  const answers = field(t("settings.gateAnswers"), checkbox({ onchange }), {
    inline: true,
    hint: t("settings.hint.gateAnswers"),
  });
  const nightly = field(t("settings.nightly"), input({ type: "number", min: 0, max: 23, oninput: onchange }), {
    hint: t("settings.hint.nightly"),
  });
  const repeats = field(
    t("settings.repeats"),
    input({ type: "number", min: 1, max: 9, placeholder: "1", oninput: onchange }),
  );
  const tokens = field(
    t("settings.runTokens"),
    input({ type: "number", min: 1000, placeholder: "2000000", oninput: onchange }),
  );
  const judge = field(
    t("settings.judge"),
    textarea({ rows: 3, dir: "auto", oninput: onchange, placeholder: t("settings.judgeExample") }),
    { hint: t("settings.hint.judge") },
  );
  const judgeModel = field(t("settings.judgeModel"), input({ dir: "ltr", oninput: onchange }), {
    hint: t("settings.hint.judgeModel"),
  });
  const judgeBatch = field(t("settings.judgeBatch"), checkbox({ onchange }), {
    inline: true,
    hint: t("settings.hint.judgeBatch"),
  });
  const element = h(
    "div",
    { class: "stack-small" },
    h("p", { class: "field-hint" }, hintOf(key)),
    h(
      "div",
      { class: "case-grid" },
      modes.map(([, mode]) => mode),
    ),
    answers,
    h("div", { class: "case-grid" }, nightly, repeats, tokens),
    judge,
    judgeModel,
    judgeBatch,
  );
  element.setError = repeats.setError;
  const number = ({ control }) => (control.value === "" ? null : Number(control.value));
  const read = () => ({
    gate: Object.fromEntries(
      modes.filter(([, mode]) => mode.control.value !== "hold").map(([kind, mode]) => [kind, mode.control.value]),
    ),
    answers: answers.control.checked,
    nightly: number(nightly),
    repeats: number(repeats) ?? EVALUATION_DEFAULT.repeats,
    maxTokens: number(tokens) ?? EVALUATION_DEFAULT.maxTokens,
    judge: criteria(judge.control.value),
    judgeModel: judgeModel.control.value.trim() || null,
    judgeBatch: judgeBatch.control.checked,
  });
  const write = (value) => {
    for (const [kind, mode] of modes) mode.control.value = value?.gate?.[kind] ?? "hold";
    answers.control.checked = value?.answers ?? false;
    nightly.control.value = value?.nightly ?? "";
    repeats.control.value = (value?.repeats ?? 1) === 1 ? "" : value.repeats;
    tokens.control.value =
      (value?.maxTokens ?? EVALUATION_DEFAULT.maxTokens) === EVALUATION_DEFAULT.maxTokens ? "" : value.maxTokens;
    judge.control.value = Object.entries(value?.judge ?? {})
      .map(([name, meaning]) => `${name}: ${meaning}`)
      .join("\n");
    judgeModel.control.value = value?.judgeModel ?? "";
    judgeBatch.control.checked = value?.judgeBatch ?? false;
  };
  return finish(element, bounds, read, write);
}

/** Parse lines of "name: meaning" into an object. Without a colon, the line is the meaning, and its beginning is the
 * name. */
function criteria(text) {
  const lines = text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
  return Object.fromEntries(
    lines.map((line) => {
      const [, name, meaning] = /^([^:：]{1,40})[:：]\s*(.+)$/.exec(line) ?? [null, line.slice(0, 40), line];
      return [name.trim(), meaning];
    }),
  );
}

const BY_TYPE = {
  enum: enumField,
  integer: numberField,
  number: numberField,
  string: textField,
  boolean: booleanField,
};
const SPECIAL = {
  primaryRoleId: roleField,
  subRoleIds: rolesField,
  fallbackModel: namesField,
  allowedModels: linesField,
  starters: linesField,
  mcpApps: linesField,
  toolPolicy: policyField,
  variables: variablesField,
  groupLabels: labelsField,
  folderLabels: labelsField,
  memory: memoryField,
  scans: scansField,
  evaluation: evaluationField,
};
