// Voice input with the browser's own speech recognition. Some browsers send the audio to their vendor for that.

import { language } from "../i18n.js";

const LANGUAGES = { en: "en-US", zh: "zh-CN" };
const PROBLEMS = {
  "not-allowed": "chat.speakDenied",
  "service-not-allowed": "chat.speakDenied",
  "audio-capture": "chat.speakDenied",
  network: "chat.speakOffline",
};

export class Dictation {
  /** Create the dictation.
   *
   * - `show(words)`: called with all recognised words so far
   * - `end(problem)`: called with the key of an error's words, or with null */
  constructor({ show, end }) {
    const Recognition = globalThis.SpeechRecognition ?? globalThis.webkitSpeechRecognition;
    this.recognition = new Recognition();
    Object.assign(this.recognition, { lang: spokenLanguage(), interimResults: true, continuous: true });
    let problem = null;
    let isStopped = false;
    this.recognition.onresult = ({ results }) =>
      isStopped || show([...results].map(([best]) => best.transcript).join(""));
    this.recognition.onerror = ({ error }) => (problem = PROBLEMS[error] ?? null);
    this.recognition.onend = () => isStopped || end(problem);
    this.stop = () => {
      isStopped = true;
      this.recognition.stop();
      end(null);
    };
    this.recognition.start();
  }
}

/** Return the browser's variant of the page's language if it has one, else the default variant. */
function spokenLanguage() {
  return navigator.languages.find((locale) => locale.split("-")[0] === language) ?? LANGUAGES[language] ?? language;
}
