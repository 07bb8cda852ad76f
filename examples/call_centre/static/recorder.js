// Runs on the audio thread: passes the samples of the microphone to the page.
registerProcessor("recorder", class extends AudioWorkletProcessor {
  process([[samples]]) {
    if (samples) this.port.postMessage(samples.slice());
    return true;
  }
});
