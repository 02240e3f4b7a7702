export default {
  "signin.copyCommand": "Copy the command",
  "signin.done": "You are signed in",
  "signin.doneText": "As {name}. If you came from another tab, go back to it: it goes on where it was. This one may be closed.",
  "signin.failed": "Signing in did not work ({code}). Try again, or ask an operator.",
  "signin.goOn": "Go on here",
  "signin.networkedServer": "An MCP server on this computer may now use the network. Programs without a key are refused since then, because it could act as you. Your browser needs to sign in once:",
  "signin.noKeys": "This server has no keys yet, so it answers only the user who runs it, on its own machine. As that user, run the command below.",
  "signin.notLetIn": "You are known to your organisation, but may not use this server. An operator decides which groups may.",
  "signin.notProven": "Your organisation did not confirm this sign-in, or it took too long. Try again.",
  "signin.otherUser": "This server has no keys and answers only the user who runs it. Your browser runs as another user of this computer.",
  "signin.providerSilent": "Your organisation’s sign-in does not answer. Try again in a moment, or sign in with a key.",
  "signin.unknownUser": "This server has no keys and answers only the user who runs it. This system does not tell which user a connection belongs to.",
};
