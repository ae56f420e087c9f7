// Sets the theme before anything is painted. A classic script: modules run too late for that.
(() => {
  const chosen = localStorage.getItem("weir-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
})();
