// The search of the site runs in a worker, which browsers refuse to pages opened from a directory.
// There a hidden frame takes the worker's place: same messages, same script.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.inside = frame.contentWindow;
      window.addEventListener("message", (event) => {
        if (event.source !== this.inside) return;
        event.stopImmediatePropagation();
        this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
      const end = "</" + "script>";
      this.inside.document.open();
      this.inside.document.write(`<html><body><script>
        postMessage = (data) => parent.postMessage(data, "*");
        importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((loaded) => {
          const script = document.createElement("script");
          script.src = url;
          script.onload = loaded;
          document.body.appendChild(script);
        })), Promise.resolve());
      ${end}<script src="${url}">${end}`);
      this.inside.document.close();
      this.ready = new Promise((loaded) => (frame.onload = loaded));
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
