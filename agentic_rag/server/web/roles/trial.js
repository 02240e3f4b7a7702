// The trial of a role's draft in a private conversation. Each message uses the draft at the time of sending. The stored
// role stays unchanged.

import { api, apiStream } from "../api.js";
import { h, oncePerFrame, replace } from "../dom.js";
import { inWords } from "../errors/text.js";
import { t } from "../i18n.js";
import { badge, button, notice, openDialog, textarea, toast, toastError } from "../ui.js";
import { emptyTurn, ENDS, reduce, textOf } from "../stream.js";

/** Open the trial of a role. `files()`: returns the current draft. */
export function openTrial({ domain, role, files }) {
  const transcript = h(
    "div",
    { class: "trial-said", role: "log", "aria-label": t("roles.trialSaid"), tabindex: 0 },
    h("p", { class: "soft" }, t("roles.trialText")),
  );
  const words = textarea({
    rows: 2,
    "aria-label": t("roles.trialMessage"),
    placeholder: t("roles.trialMessage"),
    dir: "auto",
  });
  let conversation = null;
  let running = null;
  const send = button(t("roles.send"), { kind: "primary", icon: "send", type: "submit" });
  const stop = button(t("shell.stop"), { icon: "stop", hidden: true, onclick: () => interrupt() });
  const links = h("div", { class: "row small" });
  const form = h(
    "form",
    { class: "trial-form" },
    words,
    h("div", { class: "row row-apart" }, links, h("div", { class: "row" }, stop, send)),
  );
  words.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });

  const interrupt = () => conversation && api("POST", `/api/conversations/${conversation.id}/interrupt`, { body: {} });

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const content = words.value.trim();
    if (!content || running) return;
    running = new AbortController();
    send.disabled = true;
    words.value = "";
    const giveBack = () => (words.value = [content, words.value].filter(Boolean).join("\n"));
    try {
      conversation ??= await api("POST", "/api/conversations", {
        body: { domainId: domain.id, title: t("roles.trialTitle", { role }) },
      });
      drawLinks();
      const answer = h("div", { class: "trial-answer", "aria-busy": "true" });
      const question = h("p", { class: "trial-question plain", dir: "auto" }, content);
      if (!transcript.querySelector(".trial-question")) replace(transcript);
      transcript.append(question, answer);
      let view = emptyTurn();
      const draw = oncePerFrame(() => {
        const low = transcript.scrollHeight - transcript.scrollTop - transcript.clientHeight < 80;
        replace(answer, turnView(view));
        if (low) transcript.scrollTop = transcript.scrollHeight;
      });
      transcript.scrollTop = transcript.scrollHeight;
      try {
        for await (const event of follow(
          conversation.id,
          { content, roleDraft: { role, files: files() } },
          running.signal,
        )) {
          stop.hidden = false;
          view = reduce(view, event);
          draw();
        }
      } catch (error) {
        if (error.name === "AbortError") return;
        if (!view.seq) {
          question.remove();
          giveBack();
        }
        toastError(error);
      } finally {
        draw.cancel();
        replace(answer, turnView(view));
        answer.removeAttribute("aria-busy");
      }
    } catch (error) {
      giveBack();
      toastError(error);
    } finally {
      running = null;
      send.disabled = false;
      stop.hidden = true;
      words.focus();
    }
  });

  function drawLinks() {
    const remove = async () => {
      const gone = conversation;
      conversation = null;
      replace(transcript, h("p", { class: "soft" }, t("roles.trialText")));
      replace(links);
      await api("DELETE", `/api/conversations/${gone.id}`);
      toast(t("roles.trialDeleted"));
    };
    replace(
      links,
      h(
        "a",
        { href: `#/chat/${encodeURIComponent(domain.id)}/${conversation.id}`, onclick: () => dialog.close("on") },
        t("roles.trialInChat"),
      ),
      button(t("roles.trialDelete"), { kind: "quiet", icon: "trash", onclick: remove }),
    );
  }

  /** Interrupt the turn when the dialog closes, unless `goesOn` is "on": the user then follows the turn in the chat. */
  function onclose(goesOn) {
    if (!running) return;
    running.abort();
    if (goesOn !== "on") interrupt()?.catch(toastError);
  }

  const dialog = openDialog(t("roles.trialOf", { role }), { side: true, build: () => [transcript, form], onclose });
  words.focus();
  return dialog;
}

function turnView(view) {
  const calls = view.items
    .filter((item) => item.kind === "call")
    .map((item) =>
      h(
        "li",
        { class: "row small" },
        h("span", { class: "mono wrap" }, item.name),
        badge(t(`roles.call.${item.status}`), { ok: "ok", error: "bad", denied: "bad" }[item.status] ?? "wait"),
      ),
    );
  const text = textOf(view);
  return [
    calls.length > 0 && h("ul", { class: "plain-list", "aria-label": t("roles.calls") }, calls),
    view.items
      .filter((item) => item.kind === "notice")
      .map((item) => h("p", { class: "small soft" }, inWords(item.message))),
    text && h("p", { class: "plain", dir: "auto" }, text),
    view.status === "waiting" && notice("info", t("roles.trialWaits")),
    view.error && notice("bad", view.error.message),
    view.status === "interrupted" && h("p", { class: "small soft" }, t("roles.trialStopped")),
  ];
}

/** Send a message and yield the events of its turn. */
async function* follow(conversationId, body, signal) {
  const stream = await apiStream("POST", `/api/conversations/${conversationId}/messages`, {
    body,
    signal,
    accept: "text/event-stream",
  });
  let rest = "";
  for await (const piece of decoded(stream)) {
    rest += piece;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").find((line) => line.startsWith("data: "));
      if (!data) continue;
      const event = JSON.parse(data.slice(6));
      yield event;
      if (ENDS.has(event.type) && !event.agent) return;
    }
  }
}

async function* decoded(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
