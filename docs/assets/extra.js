// The theme puts the button that copies a block of code into a <nav> without a name: for screen readers it is no landmark.
new MutationObserver(() => {
  for (const nav of document.querySelectorAll("nav.md-code__nav:not([role])")) nav.setAttribute("role", "presentation");
}).observe(document.documentElement, {childList: true, subtree: true});
