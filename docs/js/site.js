// The button for light and dark colours, and the search, which also works where pages are files (browsers refuse workers
// there).

(function () {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
  let kept = null;
  try { kept = localStorage.getItem("scheme"); } catch { /* pages of files may have no storage */ }
  if (kept) root.dataset.scheme = kept;
  const button = document.createElement("button");
  const other = () => (root.dataset.scheme || (dark.matches ? "dark" : "light")) === "dark" ? "light" : "dark";
  const label = () => { button.textContent = `${other()} colours`; };
  button.id = "scheme";
  button.type = "button";
  button.onclick = () => {
    root.dataset.scheme = other();
    try { localStorage.setItem("scheme", root.dataset.scheme); } catch { /* it holds for this page */ }
    label();
  };
  dark.addEventListener("change", label);
  label();
  document.querySelector(".wy-side-nav-search").append(button);
})();

// A worker of search/main.js in the page itself: it loads the index as a script (search/index.js, by search_index.py).
// Pages for users come before decisions, which are for contributors.
{
  const isDecision = (entry) => entry.location.startsWith("decisions/");
  const shortened = (text) => text.length > 200 ? `${text.slice(0, 200).replace(/\s*\S*$/, "")} …` : text;
  window.Worker = class {
    postMessage(message) {
      if (message.init) this.load(["lunr.js", "index.js"]);
      if (message.query) this.answer({results: this.search(message.query)});
    }

    answer(data) {
      this.onmessage({data});
    }

    load(names) {
      if (!names.length) return this.start();
      const script = document.createElement("script");
      script.src = `${base_url}/search/${names[0]}`;
      script.onload = () => this.load(names.slice(1));
      document.head.append(script);
    }

    start() {
      const {config, docs} = window.searchIndex;
      lunr.tokenizer.separator = new RegExp(config.separator);
      this.documents = new Map(docs.map((one) => [one.location, one]));
      this.index = lunr(function () {
        this.field("title");
        this.field("text");
        this.ref("location");
        docs.forEach((one) => this.add(one));
      });
      this.answer({config});
      this.answer({allowSearch: true});
    }

    search(query) {
      const entries = this.index.search(query).map(({ref}) => this.documents.get(ref));
      return entries.sort((a, b) => isDecision(a) - isDecision(b))
        .map((entry) => ({...entry, summary: shortened(entry.text)}));
    }
  };
}
