#pragma once

namespace lockstep::rpc {

// Keeps gRPC's callback threads for the rest of the process. Without it gRPC ends them whenever the
// last channel and server are gone. The last channel often goes inside a callback, with the call
// that held it; the thread would then join itself and go on with freed memory. Called before the
// first channel or server is made; later calls do nothing.
void HoldCallbackThreads();

}  // namespace lockstep::rpc
