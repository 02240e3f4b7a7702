// The upload of files and dropped folders: a few files in each request, with progress and a way to stop.

import { ApiError, errorFrom } from "../api.js";
import { below } from "../dom.js";
import { t } from "../i18n.js";

const FILES_EACH = 20;
const BYTES_EACH = 64_000_000;

/** Return the files that the user dropped, including those in folders, but no hidden files (such as `.DS_Store`). */
export async function droppedFiles(transfer) {
  const entries = [...transfer.items]
    .filter((item) => item.kind === "file")
    .map((item) => item.webkitGetAsEntry?.() ?? item.getAsFile());
  const files = [];
  for (const entry of entries) await collect(entry, files);
  return files.filter(isWanted);
}

/** Return whether to upload a file. Hidden files of the operating system are skipped. */
export const isWanted = (file) => !file.name.startsWith(".") && !/^(?:thumbs\.db|desktop\.ini)$/i.test(file.name);

async function collect(entry, files) {
  if (entry === null) return;
  if (entry instanceof File) files.push(entry);
  else if (entry.isFile) files.push(await new Promise((resolve, reject) => entry.file(resolve, reject)));
  else {
    const reader = entry.createReader();
    for (;;) {
      const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
      if (!some.length) return;
      for (const child of some) await collect(child, files);
    }
  }
}

/** Upload files to `address`. Returns how many files were sent. Raises ApiError if no more files can be sent.
 *
 * - `signal`: aborts the upload.
 * - `onProgress(sent, of)`: called with numbers of bytes.
 * - `onItems(items)`: called after each request with the result of each file. */
export async function uploadFiles(address, files, { signal, onProgress, onItems }) {
  const of = files.reduce((sum, file) => sum + file.size, 0);
  let sent = 0;
  let count = 0;
  for (const part of parts(files)) {
    if (signal?.aborted) break;
    const items = await sendPart(address, part, signal, (bytes) => onProgress(Math.min(of, sent + bytes), of));
    if (items === null) break;
    sent += part.reduce((sum, file) => sum + file.size, 0);
    count += part.length;
    onProgress(sent, of);
    onItems(items);
  }
  return count;
}

function* parts(files) {
  let part = [];
  let size = 0;
  for (const file of files) {
    if (part.length && (part.length >= FILES_EACH || size + file.size > BYTES_EACH)) {
      yield part;
      part = [];
      size = 0;
    }
    part.push(file);
    size += file.size;
  }
  if (part.length) yield part;
}

/** Send files in one request. Resolves to the results, or to null if the request was aborted. `fetch` reports no
 * progress of an upload, so XMLHttpRequest is used. */
function sendPart(address, files, signal, onBytes) {
  const form = new FormData();
  for (const file of files) form.append("file", file, file.name);
  const request = new XMLHttpRequest();
  return new Promise((resolve, reject) => {
    request.open("POST", below(address));
    request.setRequestHeader("X-Requested-With", "console");
    request.setRequestHeader("Accept", "application/json");
    request.upload.addEventListener("progress", (event) => onBytes(event.loaded));
    request.addEventListener("load", async () => {
      const answer = read(request.responseText);
      if (request.status < 300 && answer) return resolve(answer.items);
      const error = await errorFrom(request.status, answer?.error);
      // A request with only one file is refused because of that file. The refusal is its result, and the upload
      // continues.
      if (files.length === 1 && [413, 415, 422].includes(request.status))
        return resolve([{ name: files[0].name, status: "refused", error }]);
      return reject(error);
    });
    request.addEventListener("error", () =>
      reject(new ApiError(0, "OFFLINE", t(navigator.onLine === false ? "shell.offline" : "documents.cutOff"))),
    );
    request.addEventListener("abort", () => resolve(null));
    signal?.addEventListener("abort", () => request.abort());
    request.send(form);
  });
}

function read(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
