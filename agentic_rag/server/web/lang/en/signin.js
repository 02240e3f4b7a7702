export default {
  "signin.done": "You are signed in",
  "signin.doneText": "As {name}. If you came from another tab, go back to it: it goes on where it was. This one may be closed.",
  "signin.failed": "Signing in did not work ({code}). Try again, or ask an operator.",
  "signin.goOn": "Go on here",
  "signin.noKeys": "This server has no keys yet, so that it answers its own user on its own machine and nobody else. As that user, run the command below.",
  "signin.notLetIn": "You are known to your organisation, but may not use this server. An operator decides which groups may.",
  "signin.notProven": "Your organisation did not confirm this sign-in, or it took too long. Try again.",
  "signin.providerSilent": "Your organisation’s sign-in does not answer. Try again in a moment, or sign in with a key.",
};
