export default {
  "waiting.answered": "Answered. The turn continues.",
  "waiting.asAdmin": "for an admin of the domain",
  "waiting.count": { one: "{count} question is waiting for you", other: "{count} questions are waiting for you" },
  "waiting.declined": "Declined. The turn continues without it.",
  "waiting.nothing": "Nothing is waiting for you",
  "waiting.nothingText": "When an answer needs your approval or a reply, it appears here.",
  "waiting.text": "Answers that need your approval, a form, a sign-in or a reply to continue.",
  "waiting.title": "Waiting for you",
  "waiting.toConversation": "Open the conversation",
  "waiting.where": "{domain}, {ago}",
};
