// Images that are not sent yet. They are too large for where drafts are, so that a database of the browser's keeps
// them; a draft says under which keys there are any, and this module is loaded for those alone.

import { draft, IMAGES } from "../drafts.js";

const STORE = "images";

const flag = (key) => draft(`images:${key}`);

/** Whether images are kept under a key. */
const areKept = (key) => Boolean(flag(key).read());

/** Resolve to the images of a key; none where the browser has lost them. */
export async function readImages(key) {
  if (!areKept(key)) return [];
  return (await inStore("readonly", (store) => store.get(key)).catch(() => null)) ?? [];
}

/** Keep the images of a key; without any, forget them. A browser that keeps nothing loses them with the page. */
export async function writeImages(key, images) {
  if (!images.length && !areKept(key)) return;
  flag(key).write(images.length || null);
  await inStore("readwrite", (store) => (images.length ? store.put(images, key) : store.delete(key))).catch(() =>
    flag(key).clear(),
  );
}

async function inStore(mode, act) {
  const opening = indexedDB.open(IMAGES, 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
  const database = await settled(opening);
  try {
    return await settled(act(database.transaction(STORE, mode).objectStore(STORE)));
  } finally {
    database.close(); // once its transactions are over; nothing else may keep it from being deleted
  }
}

const settled = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
