// The field for a message. Its text is kept as a draft until it is sent, with the images and files that belong to it.

import { lazily, loadAll } from "../api.js";
import { draft } from "../drafts.js";
import { debounce, h, replace } from "../dom.js";
import { loadErrorTexts } from "../errors/text.js";
import { loadWords, t } from "../i18n.js";
import { button, select, toast, toastError } from "../ui.js";

const MOST_CHARACTERS = 10_000;
const MOST_IMAGES = 8;
const MOST_BYTES = 3_900_000;
const IMAGE_TYPES = ["image/png", "image/jpeg", "image/gif", "image/webp"];

const fileParts = lazily((again) => import(`./attached.js${again}`));
const speechParts = lazily((again) => import(`./speech.js${again}`));
const imageParts = lazily((again) => import(`./kept-images.js${again}`));

export class Composer {
  /** Create the field.
   *
   * - `send({content, images, attachments}, taken)`: resolves once the server has the message, or rejects with the
   *   error. Until it calls `taken()`, the composer keeps the message as the draft
   * - `stop()`: stops the running turn
   * - `conversation()`: resolves to the id of the conversation that files are attached to
   * - `abandon()`: called when the user has removed all files */
  constructor({ send, stop, conversation, abandon }) {
    this.given = { send, stop, conversation, abandon };
    this.images = [];
    this.leaving = "";
    this.running = false;
    this.text = h("textarea", {
      class: "composer-text",
      rows: 1,
      placeholder: t("chat.placeholder"),
      "aria-label": t("chat.message"),
      "aria-describedby": "composer-hint",
      oninput: () => this.#changed(),
      onkeydown: (event) => this.#key(event),
      onpaste: (event) => this.#take([...event.clipboardData.files]),
    });
    this.file = h("input", {
      type: "file",
      multiple: true,
      hidden: true,
      "aria-label": t("chat.attach"),
      onchange: () => this.#take([...this.file.files]),
    });
    this.previews = h("div", { class: "composer-images", hidden: true });
    this.files = h("div", {});
    this.attach = button(t("chat.attach"), {
      kind: "quiet",
      icon: "attach",
      compact: true,
      onclick: () => this.file.click(),
    });
    this.speak = this.#speechButton();
    this.models = h("span", { class: "composer-model", hidden: true });
    this.send = button(t("chat.send"), { kind: "primary", icon: "send", compact: true, onclick: () => this.#send() });
    this.stop = button(t("chat.stop"), { icon: "stop", compact: true, onclick: () => this.given.stop() });
    this.stop.hidden = true;
    this.count = h("span", { class: "small field-error", role: "status", hidden: true });
    this.hint = h("p", { class: "composer-hint small faint", id: "composer-hint" }, t("chat.keys"));
    this.box = h(
      "div",
      { class: "composer-box" },
      this.files,
      this.previews,
      this.text,
      h(
        "div",
        { class: "composer-acts" },
        this.attach,
        this.file,
        this.speak,
        this.models,
        h("span", { class: "grow" }),
        this.count,
        this.stop,
        this.send,
      ),
    );
    this.element = h("form", { class: "composer", onsubmit: (event) => event.preventDefault() }, this.box, this.hint);
    this.box.addEventListener("dragover", (event) => event.preventDefault());
    this.box.addEventListener("drop", (event) => {
      event.preventDefault();
      this.#take([...event.dataTransfer.files]);
    });
    this.keep = debounce(150, () => this.#keep());
    this.#changed();
  }

  /** Return the button for dictation, or null if the browser has no speech recognition. */
  #speechButton() {
    if (!globalThis.SpeechRecognition && !globalThis.webkitSpeechRecognition) return null;
    const speakButton = button(t("chat.speak"), {
      kind: "quiet",
      icon: "mic",
      compact: true,
      "aria-pressed": "false",
      onclick: () => this.#speak(),
    });
    this.speech = speechParts;
    return speakButton;
  }

  async #speak() {
    if (this.dictation) return this.dictation.stop();
    const { Dictation } = await this.speech();
    const before = this.text.value && !/\s$/.test(this.text.value) ? `${this.text.value} ` : this.text.value;
    const show = (words) => {
      this.text.value = before + words;
      this.#changed();
    };
    const end = (problem) => {
      this.dictation = null;
      this.speak.setAttribute("aria-pressed", "false");
      this.keep();
      if (problem) toast(t(problem), { kind: "error" });
    };
    this.dictation = new Dictation({ show, end });
    this.speak.setAttribute("aria-pressed", "true");
    return undefined;
  }

  /** Move the draft to a conversation that was just created. */
  moveTo(key) {
    this.draft?.clear();
    this.#keepImages(this.key, { images: [] });
    draft(`attached:${this.key}`).clear();
    this.key = `chat:${key}`;
    this.draft = draft(this.key);
    this.#keepImages();
    this.#keepAttached();
  }

  setPlaceholder(text) {
    this.text.placeholder = text;
  }

  /** Offer the models that the user may choose, with the domain's default first. `models` is empty if there is no
   * choice. */
  setModels(models) {
    this.models.hidden = models.length === 0;
    this.picker = models.length
      ? select(
          models.map((model) => [model, model]),
          { "aria-label": t("chat.model") },
        )
      : null;
    replace(this.models, this.picker);
  }

  /** Select the conversation's model, or the domain's default if that model is no longer offered. */
  chooseModel(model) {
    if (!this.picker) return;
    this.picker.value = model ?? "";
    if (!this.picker.value) this.picker.selectedIndex = 0;
  }

  /** Return the model for the next message, or undefined if there is no choice. */
  get model() {
    return this.picker?.value;
  }

  /** Stop showing the attached files, because another conversation or page is shown. Uploads continue. */
  leave() {
    this.attached?.leave();
    this.attached = null;
    replace(this.files);
  }

  /** Return the conversation whose attached files belong to this draft, or null. */
  get attachedTo() {
    return draft(`attached:${this.key}`).read();
  }

  /** Store the conversation of the attached files in a draft, so that a later page shows the files. */
  async #keepAttached() {
    const { attached, key } = this;
    const attachedDraft = draft(`attached:${key}`);
    if (!attached?.ready.length) return attachedDraft.clear();
    const id = await this.given.conversation();
    if (key === this.key && attached === this.attached) attachedDraft.write(id);
    return undefined;
  }

  /** Return the part that shows the attached files. It is loaded with the first file. Resolves to null if another draft
   * was opened meanwhile. */
  async #attachedFiles() {
    const { opened } = this;
    const [{ AttachedFiles }] = await loadAll(fileParts(), loadWords("documents"), loadErrorTexts());
    if (opened !== this.opened) return null;
    if (!this.attached) {
      const onchange = () => {
        this.#changed();
        this.#keepAttached().catch(toastError);
      };
      this.attached = new AttachedFiles({
        conversation: this.given.conversation,
        onchange,
        onempty: this.given.abandon,
      });
      replace(this.files, this.attached.element);
    }
    return this.attached;
  }

  async #restoreFiles() {
    const files = await this.#attachedFiles();
    if (files) await files.restore(await this.given.conversation());
  }

  /** Show the draft of another conversation. */
  open(key) {
    this.dictation?.stop();
    this.flush();
    this.leave();
    this.opened = (this.opened ?? 0) + 1;
    this.leaving = "";
    this.key = `chat:${key}`;
    this.draft = draft(this.key);
    this.text.value = this.draft.read() ?? "";
    this.images = [];
    this.#drawImages();
    this.#changed();
    if (draft(`images:${this.key}`).read()) this.#readImages().catch(toastError);
    if (this.attachedTo) this.#restoreFiles().catch((error) => error.status === 404 || toastError(error));
  }

  async #readImages() {
    const { opened, key } = this;
    const { readImages } = await imageParts();
    const images = await readImages(key);
    if (opened !== this.opened || !images.length) return;
    this.images = [...images, ...this.images];
    this.#drawImages();
    this.#changed();
  }

  /** Store the images that are shown, in case the user leaves the page. */
  #keepImages(key = this.key, { images } = this) {
    if (!images.length && !draft(`images:${key}`).read()) return;
    imageParts()
      .then(({ writeImages }) => writeImages(key, images))
      .catch(toastError);
  }

  flush() {
    this.keep.cancel();
    this.#keep();
  }

  /** Delete the stored images of a message that was sent. Images that were chosen after it stay. */
  #keepSent(opened, key) {
    if (this.opened === opened) this.#keepImages();
    else this.#keepImages(key, { images: [] });
  }

  #keep() {
    this.draft?.write([this.leaving, this.text.value].filter(Boolean).join("\n"));
  }

  /** Put a message that could not be sent before the current text. */
  giveBack(content, images = [], attachments = []) {
    if (attachments.length) this.#putBack(attachments);
    this.setText([content, this.text.value].filter(Boolean).join("\n"));
    this.flush();
    this.images = [...images, ...this.images];
    this.#drawImages();
    this.#changed();
    this.#keepImages();
  }

  #putBack(attachments) {
    this.#attachedFiles()
      .then((files) => files?.put(attachments))
      .catch(toastError);
  }

  setRunning(running) {
    this.running = running;
    this.stop.hidden = !running;
    this.#changed();
  }

  setText(text) {
    this.text.value = text;
    this.#changed();
    this.text.focus();
  }

  focus() {
    this.text.focus();
  }

  #changed() {
    const { value } = this.text;
    this.text.style.setProperty("block-size", "auto");
    this.text.style.setProperty("block-size", `${Math.min(this.text.scrollHeight, innerHeight * 0.4)}px`);
    const over = value.length - MOST_CHARACTERS;
    this.count.hidden = over <= 0;
    if (over > 0) this.count.textContent = t("chat.tooLong", { count: over });
    this.send.disabled = over > 0 || Boolean(this.attached?.isBusy) || (!value.trim() && !this.images.length);
    this.keep();
  }

  #key(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (!this.send.disabled) this.#send();
    } else if (event.key === "Escape" && this.running) {
      event.preventDefault();
      this.given.stop();
    }
  }

  async #send() {
    this.dictation?.stop();
    const content = this.text.value.trim();
    const images = this.images;
    const attachments = this.attached?.ready ?? [];
    if (!content && !images.length) return;
    const { opened, draft: sentDraft, key } = this;
    const taken = () => {
      this.#keepSent(opened, key);
      if (this.opened === opened) this.leaving = "";
      // Keep only text that was typed after the sent message.
      else sentDraft?.write((sentDraft.read() ?? "").slice(content.length + 1));
    };
    this.leaving = content;
    this.text.value = "";
    this.images = [];
    this.attached?.clear();
    this.#drawImages();
    this.#changed();
    this.keep.cancel();
    this.text.focus();
    try {
      await this.given.send({ content, images, attachments }, taken);
      if (this.opened === opened) this.flush();
      this.#keepSent(opened, key);
    } catch (error) {
      const isKept = this.leaving === content || (sentDraft?.read() ?? "").startsWith(content);
      this.leaving = "";
      // Text that was typed meanwhile stays; the unsent text is put before it.
      if (this.opened === opened) {
        this.text.value = [content, this.text.value].filter(Boolean).join("\n");
        this.images = [...images, ...this.images];
        if (attachments.length) this.#putBack(attachments);
        this.#drawImages();
        this.#changed();
        this.#keepImages();
        this.flush();
      } else if (!isKept) sentDraft?.write([content, sentDraft.read()].filter(Boolean).join("\n"));
      await loadErrorTexts();
      toastError(error);
    }
  }

  /** Add files: images are sent with the message, other files are uploaded to the conversation. */
  async #take(files) {
    const others = files.filter((file) => !IMAGE_TYPES.includes(file.type));
    if (others.length) this.#attach(others).catch(toastError);
    for (const file of files.filter((file) => IMAGE_TYPES.includes(file.type))) {
      if (this.images.length >= MOST_IMAGES) toast(t("chat.tooManyImages", { count: MOST_IMAGES }), { kind: "error" });
      else if (file.size + this.images.reduce((sum, image) => sum + image.size, 0) > MOST_BYTES)
        toast(t("chat.imageTooLarge"), { kind: "error" });
      else this.images.push({ data: await base64(file), mediaType: file.type, size: file.size, name: file.name });
    }
    this.file.value = "";
    this.#drawImages();
    this.#changed();
    this.#keepImages();
  }

  async #attach(files) {
    (await this.#attachedFiles())?.add(files);
  }

  #drawImages() {
    this.previews.hidden = !this.images.length;
    replace(
      this.previews,
      this.images.map((image) =>
        h(
          "span",
          { class: "composer-image" },
          h("img", { src: `data:${image.mediaType};base64,${image.data}`, alt: image.name }),
          button(t("chat.removeImage", { name: image.name }), {
            kind: "quiet",
            icon: "close",
            compact: true,
            onclick: () => this.#remove(image),
          }),
        ),
      ),
    );
  }

  #remove(image) {
    this.images = this.images.filter((listed) => listed !== image);
    this.#drawImages();
    this.#changed();
    this.#keepImages();
  }
}

function base64(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
