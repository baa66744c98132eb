#pragma once

namespace lockstep::rpc {

// Keeps gRPC's callback threads for the rest of the process. Without it gRPC ends them whenever the
// last channel and server are gone. The last channel often goes inside a callback, with the call
// that held it; the thread would then join itself and go on with freed memory. Called before the
// first channel or server is made; later calls do nothing.
//
// Half of them are put to sleep, all but one on machines of up to seven cores. gRPC 1.51 starts
// half as many as there are cores, at least two, without a setting; whoever polls wakes the next
// one before it works, so that every message costs thread switches that one thread does not need
// (docs/decisions/0015-few-callback-threads.md).
//
// Also keeps Abseil from recording in which order gRPC takes its locks. Debian builds Abseil with
// assertions, and so with a deadlock detector: a graph of all locks that grows with the calls
// served, behind one lock of the whole process, and an abort where it believes to see a cycle.
void HoldCallbackThreads();

// How many threads of this process run callbacks.
int CallbackThreads();

}  // namespace lockstep::rpc
