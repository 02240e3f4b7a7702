export default {
  "signin.copyCommand": "复制命令",
  "signin.done": "您已登录",
  "signin.doneText": "当前用户：{name}。如果您来自另一个标签页，请返回该标签页，它会从原处继续。此标签页可以关闭。",
  "signin.failed": "登录失败（{code}）。请重试，或联系运维人员。",
  "signin.goOn": "在此继续",
  "signin.networkedServer": "本机的一个 MCP 服务器现在可以使用网络。由于它可能冒充您，没有密钥的程序从此被拒绝。您的浏览器需要登录一次：",
  "signin.noKeys": "此服务器还没有密钥，因此只回应本机上运行它的用户。请以该用户身份运行以下命令。",
  "signin.notLetIn": "您的组织账号有效，但无权使用此服务器。哪些用户组可以使用由运维人员决定。",
  "signin.notProven": "您的组织未确认此次登录，或登录超时。请重试。",
  "signin.otherUser": "此服务器没有密钥，只回应运行它的用户。您的浏览器以本机的另一个用户身份运行。",
  "signin.providerSilent": "组织登录服务没有回应。请稍后重试，或使用密钥登录。",
  "signin.unknownUser": "此服务器没有密钥，只回应运行它的用户。此系统无法告知连接属于哪个用户。",
};
