export default {
  "signin.copyCommand": "Copy the command",
  "signin.done": "You are signed in",
  "signin.doneText": "You are signed in as {name}. If you came from another tab, continue there. You can close this one.",
  "signin.failed": "Sign-in failed ({code}). Try again, or ask an operator.",
  "signin.goOn": "Continue here",
  "signin.networkedServer": "An MCP server on this computer can now use the network and could act as you. Programs without a key are therefore refused. Your browser needs to sign in once:",
  "signin.noKeys": "This server has no keys yet, so it accepts only the user who runs it, on its own machine. As that user, run the command below.",
  "signin.notLetIn": "Your organisation knows you, but you don’t have access to this server. An operator decides which groups do.",
  "signin.notProven": "Your organisation did not confirm this sign-in, or it took too long. Try again.",
  "signin.otherUser": "This server has no keys and accepts only the user who runs it. Your browser runs as another user of this computer.",
  "signin.providerSilent": "Your organisation’s sign-in does not respond. Try again in a moment, or sign in with a key.",
  "signin.unknownUser": "This server has no keys and accepts only the user who runs it. This system does not report which user opened a connection.",
};
