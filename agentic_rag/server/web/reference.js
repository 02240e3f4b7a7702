// The API reference at /api/docs: one page with the operations and schemas of /api/openapi.json, and with examples. It
// is in English only, like that document. All of its words become text nodes (`dom.js`), so they cannot become markup.

import { append, h, ROOT } from "./dom.js";

const DEEPEST = 4; // levels of an example; below them, optional members are left out

/** Return a docstring as paragraphs. */
const prose = (text = "") =>
  text
    .split("\n\n")
    .filter((part) => part.trim())
    .map((part) => h("p", {}, words(part.trim())));

const words = (text) => text.split(/``?([^`]+)``?/).map((part, at) => (at % 2 ? h("code", {}, part) : part));

const code = (value) => h("code", {}, typeof value === "string" ? value : JSON.stringify(value));

const byDefault = (schema) => (schema.default === undefined ? "" : code(JSON.stringify(schema.default)));

const nameOf = (reference) => reference.slice(reference.lastIndexOf("/") + 1);

/** Return items with a separator between them. */
const join = (items, separator) => items.flatMap((item, at) => (at ? [separator, item] : [item]));

function table(heads, rows) {
  const head = h(
    "tr",
    {},
    heads.map((head) => h("th", { scope: "col" }, head)),
  );
  const body = rows.map((row) =>
    h(
      "tr",
      {},
      row.map((cell) => h("td", {}, cell)),
    ),
  );
  return h("table", {}, h("thead", {}, head), h("tbody", {}, body));
}

/** Return a readable type for a schema, with links to the schemas that it refers to. */
function type(schema) {
  if (schema.$ref) return h("a", { href: `#schema-${nameOf(schema.$ref)}` }, nameOf(schema.$ref));
  if (schema.enum || schema.const !== undefined) {
    return join(
      (schema.enum ?? [schema.const]).map((value) => code(JSON.stringify(value))),
      " | ",
    );
  }
  const either = schema.anyOf ?? schema.oneOf;
  if (either) return join(either.map(type), " | ");
  if (schema.type === "array") return ["list of ", type(schema.items ?? {})];
  if (schema.type === "object" && schema.additionalProperties instanceof Object)
    return ["map of ", type(schema.additionalProperties)];
  const bounds = { minimum: "from", maximum: "to", maxLength: "at most", pattern: "like" };
  const limits = Object.keys(bounds)
    .filter((key) => schema[key] !== undefined)
    .map((key) => `${bounds[key]} ${schema[key]}`);
  return [schema.type ?? "any", ...limits].join(" ");
}

/** Return an example value for a schema. */
function exampleOf(schema, schemas, levels = DEEPEST) {
  if (schema.$ref) return exampleOf(schemas[nameOf(schema.$ref)], schemas, levels);
  if (schema.const !== undefined) return schema.const;
  if (schema.enum) return schema.enum[0];
  const either = schema.anyOf ?? schema.oneOf;
  if (either) return exampleOf(either[0], schemas, levels);
  if (schema.default !== undefined && schema.default !== null) return schema.default;
  if (schema.type === "object") {
    const members = Object.entries(schema.properties ?? {}).filter(
      ([key]) => levels > 0 || schema.required?.includes(key),
    );
    return Object.fromEntries(members.map(([key, member]) => [key, exampleOf(member, schemas, levels - 1)]));
  }
  if (schema.type === "array") return levels > 0 && schema.items ? [exampleOf(schema.items, schemas, levels - 1)] : [];
  if (schema.type === "integer" || schema.type === "number") return schema.minimum ?? 1;
  return { boolean: true, string: "text" }[schema.type] ?? null;
}

const example = (schema, { schemas }) => h("pre", {}, code(JSON.stringify(exampleOf(schema, schemas), null, 2)));

function operation(method, path, description, components) {
  const bodies = Object.entries(description.requestBody?.content ?? {}).map(([kind, { schema }]) => [
    h("p", {}, "Takes ", code(kind), ": ", type(schema)),
    kind === "application/json" && example(schema, components),
  ]);
  const answers = Object.entries(description.responses).map(([status, response]) => {
    const answer = response.$ref ? components.responses[nameOf(response.$ref)] : response;
    const kinds = status < "400" ? Object.entries(answer.content ?? {}) : [];
    return [
      status,
      [prose(answer.description), kinds.map(([kind, { schema }]) => h("div", {}, code(kind), ": ", type(schema)))],
    ];
  });
  const success = Object.entries(description.responses).find(([status]) => status < "300")?.[1].content?.[
    "application/json"
  ];
  const parameters = description.parameters.map((parameter) => [
    code(parameter.name),
    parameter.in,
    type(parameter.schema),
    parameter.required ? "required" : byDefault(parameter.schema),
  ]);
  return h(
    "article",
    {},
    h("h3", { id: description.operationId }, `${method.toUpperCase()} ${path}`),
    prose(description.summary),
    prose(description.description),
    h("p", {}, `For: ${description["x-allow"]}.${description["x-audited"] ? " Recorded in the audit log." : ""}`),
    parameters.length > 0 && table(["Parameter", "In", "Type", "Default"], parameters),
    bodies,
    table(["Status", "Answer"], answers),
    success && example(success.schema, components),
  );
}

function schemaOf(name, schema) {
  const rows = Object.entries(schema.properties ?? {}).map(([key, property]) => [
    code(key),
    type(property),
    schema.required?.includes(key) ? "required" : byDefault(property),
  ]);
  const body = rows.length ? table(["Member", "Type", "Default"], rows) : h("p", {}, type(schema));
  return h("article", {}, h("h3", { id: `schema-${name}` }, name), prose(schema.description), body);
}

function show({ info, paths, components }) {
  const groups = new Map();
  for (const [path, item] of Object.entries(paths)) {
    for (const [method, description] of Object.entries(item)) {
      const [tag] = description.tags;
      groups.set(tag, [...(groups.get(tag) ?? []), operation(method, path, description, components)]);
    }
  }
  const sections = [...groups].sort(([first], [second]) => (first < second ? -1 : 1));
  const schemas = Object.entries(components.schemas).sort(([first], [second]) => (first < second ? -1 : 1));
  const links = [...sections.map(([tag]) => [tag, tag]), ["schemas", "Schemas"]];
  append(document.body, [
    h("h1", {}, `${info.title} ${info.version}`),
    prose(info.description),
    h(
      "p",
      {},
      "The same for programs: ",
      h("a", { href: "/api/openapi.json" }, code("/api/openapi.json")),
      " (OpenAPI 3.1).",
    ),
    h(
      "nav",
      { "aria-label": "Contents" },
      h(
        "ul",
        {},
        links.map(([id, text]) => h("li", {}, h("a", { href: `#${id}` }, text))),
      ),
    ),
    h("main", {}, [
      ...sections.map(([tag, articles]) => h("section", {}, h("h2", { id: tag }, tag), articles)),
      h(
        "section",
        {},
        h("h2", { id: "schemas" }, "Schemas"),
        schemas.map(([name, schema]) => schemaOf(name, schema)),
      ),
    ]),
  ]);
  document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
}

try {
  show(await (await fetch(`${ROOT}/api/openapi.json`)).json());
} catch (error) {
  append(
    document.body,
    h("p", { role: "alert" }, `The reference cannot be shown (${error.message}). Reload the page.`),
  );
}
