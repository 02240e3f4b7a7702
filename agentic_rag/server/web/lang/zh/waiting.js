export default {
  "waiting.answered": "已回复，对话将继续。",
  "waiting.asAdmin": "由该知识域的管理员回复",
  "waiting.count": { other: "有 {count} 个问题等待您回复" },
  "waiting.declined": "已拒绝，对话将在没有它的情况下继续。",
  "waiting.nothing": "没有等待您回复的问题",
  "waiting.nothingText": "当回答需要您批准或补充信息时，会显示在这里，直到您回复。",
  "waiting.text": "需要您回复后才能继续的回答：批准、表单、登录和提问。",
  "waiting.title": "等待您回复",
  "waiting.toConversation": "打开对话",
  "waiting.where": "{domain}，{ago}",
};
