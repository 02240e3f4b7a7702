// Stores images that are not sent yet. They are too large for `localStorage`, so they are in an IndexedDB database. A
// draft marks each key that has images, so that this module is loaded only if there are any.

import { draft, IMAGES } from "../drafts.js";

const STORE = "images";

const flag = (key) => draft(`images:${key}`);

/** Return whether images are stored under a key. */
const areKept = (key) => Boolean(flag(key).read());

/** Return the images of a key, or an empty list if the browser has lost them. */
export async function readImages(key) {
  if (!areKept(key)) return [];
  return (await inStore("readonly", (store) => store.get(key)).catch(() => null)) ?? [];
}

/** Store the images of a key; an empty list deletes them. If the browser has no storage, the images are lost with the
 * page. */
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
    database.close(); // This waits for the transactions. An open connection would block the deletion of the database.
  }
}

const settled = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
