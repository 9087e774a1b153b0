/* Search without a server: pages opened from a folder may not start workers, so a worker's script runs in a hidden frame. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const script = new URL(url, location.href).href;
      this.waiting = [];
      const start = () => {
        const frame = document.createElement("iframe");
        frame.hidden = true;
        document.body.append(frame);
        this.inner = frame.contentWindow;
        this.inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
        this.inner.importScripts = (...urls) => urls.reduce((before, each) => before.then(() => this.load(each)), Promise.resolve());
        this.load(script).then(() => {
          this.waiting.forEach(data => this.deliver(data));
          this.waiting = null;
        });
      };
      document.body ? start() : addEventListener("DOMContentLoaded", start);
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.inner.document.createElement("script");
        script.onload = resolve;
        script.onerror = reject;
        script.src = url;
        this.inner.document.body.append(script);
      });
    }

    deliver(data) {
      this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data }));
    }

    postMessage(data) {
      this.waiting ? this.waiting.push(data) : this.deliver(data);
    }

    terminate() {
      this.inner?.frameElement.remove();
    }
  };
}
