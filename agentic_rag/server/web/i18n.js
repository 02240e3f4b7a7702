// Words in the user's language. Each page has its own file, `lang/{language}/{section}.js`, which is loaded with the
// page.

import { ROOT } from "./dom.js";

const LANGUAGES = { en: "English", zh: "中文" };

const words = new Map();
const loaded = new Map();
const failed = new Map();
let plurals;

/** The available languages: code to name. */
export const languages = LANGUAGES;

/** The language of the page that the server sent. */
export const language = document.documentElement.lang.split("-")[0];
document.documentElement.dir = "ltr";

/** Store a choice of this browser's user, the theme or the language, for the next load of the page. "" deletes it. */
export function storeChoice(name, value) {
  document.cookie = `agentic-rag.${name}=${value}; path=${ROOT}/; max-age=${value ? 34_560_000 : 0}; samesite=strict`;
}

/** Set the language, and reload the page in it. */
export function chooseLanguage(code) {
  storeChoice("language", code);
  location.reload();
}

/** Load the words of some sections (`shell`, `chat`, …). A page does this before it shows anything. */
export async function loadWords(...sections) {
  await Promise.all(sections.map((section) => loaded.get(section) ?? loadSection(section)));
}

function loadSection(section) {
  const again = failed.get(section) ?? 0; // another address, because a browser remembers that the first one failed
  const loading = import(`./lang/${language}/${section}.js${again ? `?again=${again}` : ""}`).then((module) => {
    for (const [key, text] of Object.entries(module.default)) words.set(key, text);
  });
  loaded.set(section, loading);
  loading.catch(() => {
    loaded.delete(section);
    failed.set(section, again + 1);
  });
  return loading;
}

/** Return the words of a key. `{name}` in them is replaced by `values.name`, and a number is formatted for the
 * language. If the words have plural forms (`{one: …, other: …}`), `values.count` selects one of them. */
export function t(key, values = {}) {
  let text = words.get(key);
  if (text === undefined) return key;
  if (typeof text === "object") {
    plurals ??= new Intl.PluralRules(language);
    text = text[plurals.select(values.count ?? 0)] ?? text.other;
  }
  return text.replace(/\{(\w+)\}/g, (whole, name) => {
    const value = values[name];
    if (value === undefined) return whole;
    return typeof value === "number" ? formatNumber(value) : String(value);
  });
}

/** Return whether a key has words. Not every error code has them. */
export const hasWords = (key) => words.has(key);

/** The language with the user's region: en-GB orders days and months differently from en-US. */
const region = navigator.languages?.find((locale) => locale.toLowerCase().split("-")[0] === language) ?? language;
const formats = new Map();

function format(kind, options) {
  const key = `${kind.name}${JSON.stringify(options)}`;
  if (!formats.has(key)) formats.set(key, new kind(kind === Intl.DateTimeFormat ? region : language, options));
  return formats.get(key);
}

export const formatNumber = (value, options = {}) => format(Intl.NumberFormat, options).format(value);

/** Format exact decimal text as money. A currency that is not a three-letter code is written after the amount. */
export function formatMoney(text, currency) {
  const amount = Number(text);
  if (/^[A-Z]{3}$/.test(currency ?? ""))
    return formatNumber(amount, { style: "currency", currency, maximumFractionDigits: 4 });
  return `${formatNumber(amount, { maximumFractionDigits: 4 })} ${currency ?? ""}`.trim();
}

export const formatPercent = (share) => formatNumber(share, { style: "percent", maximumFractionDigits: 0 });

/** Format a date of the API (ISO 8601) with its time, or only the day. */
export function formatDate(iso, { time = true } = {}) {
  const options = time ? { dateStyle: "medium", timeStyle: "short" } : { dateStyle: "medium" };
  return iso ? format(Intl.DateTimeFormat, options).format(new Date(iso)) : "";
}

/** Format a past date briefly: the time for today and yesterday, the weekday for the last week, else the day. The year
 * is added if it is not the current one. */
export function formatDay(iso, now = Date.now()) {
  const date = new Date(iso);
  const days = Math.ceil((new Date(now).setHours(0, 0, 0, 0) - date.getTime()) / 86_400_000);
  if (days <= 1) return format(Intl.DateTimeFormat, { timeStyle: "short" }).format(date);
  if (days <= 7) return format(Intl.DateTimeFormat, { weekday: "short" }).format(date);
  const isThisYear = date.getFullYear() === new Date(now).getFullYear();
  return format(Intl.DateTimeFormat, {
    day: "numeric",
    month: "short",
    ...(isThisYear ? {} : { year: "numeric" }),
  }).format(date);
}

/** Format the time since a date in words: "3 hours ago". */
export function formatAgo(iso, now = Date.now()) {
  const seconds = (new Date(iso).getTime() - now) / 1000;
  const units = [
    ["year", 31_536_000],
    ["month", 2_592_000],
    ["week", 604_800],
    ["day", 86_400],
    ["hour", 3_600],
    ["minute", 60],
  ];
  const [unit, length] = units.find(([, length]) => Math.abs(seconds) >= length) ?? ["second", 1];
  return format(Intl.RelativeTimeFormat, { numeric: "auto" }).format(Math.trunc(seconds / length), unit);
}

export function formatDuration(milliseconds) {
  if (milliseconds < 1000) return formatNumber(Math.round(milliseconds), { style: "unit", unit: "millisecond" });
  return formatSeconds(milliseconds);
}

/** Format a duration in seconds with one digit, at least 0.1: "0.3 s". A longer one is in minutes and seconds. */
export function formatSeconds(milliseconds) {
  const unit = (value, name, options = {}) =>
    formatNumber(value, { style: "unit", unit: name, unitDisplay: "narrow", ...options }).replace(
      /(\d)([a-z])/u,
      "$1\u00a0$2",
    );
  const seconds = milliseconds / 1000;
  if (seconds < 59.95) return unit(Math.max(0.1, seconds), "second", { maximumFractionDigits: 1 });
  const whole = Math.round(seconds);
  return `${unit(Math.floor(whole / 60), "minute")} ${unit(whole % 60, "second")}`;
}

export function formatBytes(bytes) {
  const units = ["byte", "kilobyte", "megabyte", "gigabyte", "terabyte"];
  let at = 0;
  for (; bytes >= 1000 && at < units.length - 1; at += 1) bytes /= 1000;
  return formatNumber(bytes, {
    style: "unit",
    unit: units[at],
    unitDisplay: at ? "short" : "long",
    maximumFractionDigits: bytes < 10 && at ? 1 : 0,
  });
}

/** Compare texts in the sort order of the language. */
export const compareTexts = (first, second) => format(Intl.Collator, { numeric: true }).compare(first, second);
