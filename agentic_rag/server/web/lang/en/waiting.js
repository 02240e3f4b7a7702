export default {
  "waiting.answered": "Answered. The turn goes on.",
  "waiting.asAdmin": "for an admin of the domain",
  "waiting.count": { one: "{count} question waits for you", other: "{count} questions wait for you" },
  "waiting.declined": "Declined. The turn goes on without it.",
  "waiting.nothing": "Nothing waits for you",
  "waiting.nothingText": "When an answer needs your approval or a few words from you, it stands here until you answer it.",
  "waiting.text": "Answers that go on once you have said something: approvals, forms, sign-ins and questions.",
  "waiting.title": "Waiting for you",
  "waiting.toConversation": "Open the conversation",
  "waiting.where": "{domain}, {ago}",
};
