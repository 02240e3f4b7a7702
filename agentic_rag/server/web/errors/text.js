// The text of an error in the user's language. The server writes English. Each other language has a file in this folder
// with a text for each error code. An error without such a text keeps the server's.

import { formatNumber, language } from "../i18n.js";

const WITH_TEXTS = new Set(["zh"]);

let texts = null;
let loading = null;

/** Load the texts of the page's language once. Without them, errors keep the server's texts. */
export function loadErrorTexts() {
  if (!WITH_TEXTS.has(language)) return Promise.resolve();
  loading ??= import(`./${language}.js`).then(
    (module) => (texts = module),
    () => (loading = null), // so that the next error loads them again
  );
  return loading;
}

let sentences = [];
let loadingSentences = null;

/** Load the translations of the server's sentences that are not errors. Without them, the sentences stay English. */
export function loadSentences() {
  if (!WITH_TEXTS.has(language)) return Promise.resolve();
  loadingSentences ??= import(`./${language}-sentences.js`).then(
    (module) => void (sentences = module.sentences),
    () => (loadingSentences = null),
  );
  return loadingSentences;
}

/** Return a sentence of the server, such as a finding, a notice or a reason, in the user's language. An unknown
 * sentence is returned unchanged, and so is a value that is not text. */
export function inWords(sentence) {
  if (typeof sentence !== "string") return sentence;
  for (const [pattern, text] of sentences) {
    const match = pattern.exec(sentence);
    if (match) return text.replace(/\$(\d)/g, (_, at) => inWords(match[at] ?? ""));
  }
  return sentence;
}

/** Return the text of an error. It is `{code, message, details?}` from the API, or an Error that already has its
 * text. */
export function errorText({ code = "", message = "", details, hasText = false }) {
  if (hasText || texts === null) return message;
  const values = { ...details, message, problem: problemText(details?.problem), ...nounOf(code) };
  for (const text of [texts.codes[code] ?? (values.noun && texts.notFound)].flat().filter(Boolean)) {
    const filled = fill(text, values);
    if (filled !== null) return filled;
  }
  return message;
}

/** Return details with the problem in the user's language, for places that show the problem without its field. */
export function detailsInWords(details) {
  return texts === null || typeof details?.problem !== "string"
    ? details
    : { ...details, problem: problemText(details.problem) };
}

/** Return a sentence about an invalid value in the user's language, or the server's sentence if it is unknown. */
function problemText(problem) {
  if (typeof problem !== "string") return undefined;
  for (const [pattern, text] of texts.problems) {
    const match = pattern.exec(problem);
    if (match) return text.replace(/\$(\d)/g, (_, at) => match[at] ?? "");
  }
  return problem;
}

function nounOf(code) {
  const key = /^(\w+)_NOT_FOUND$/.exec(code)?.[1];
  return key ? { noun: texts.nouns[key] } : {};
}

/** Return a text with its values filled in, or null if a value is missing. */
function fill(text, values) {
  let isWhole = true;
  const filled = text.replace(/\{(\w+)\}/g, (_, name) => {
    const value = values[name];
    if (value === undefined || value === null || typeof value === "object") isWhole = false;
    return typeof value === "number" ? formatNumber(value) : String(value);
  });
  return isWhole ? filled : null;
}
