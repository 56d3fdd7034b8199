//! The gateway as its users have it: the real binary, real sockets, scripted upstreams.

mod support;

mod admin; // /livez, /readyz, /metrics, logs
mod admin_api; // what operators see and decide
mod admin_fuzz; // the OpenAPI document is the truth
mod contract; // services that complete in their own transaction
mod demo; // the story
mod operate; // commands of operators
mod passing; // what goes through, and how it is changed
mod protecting; // keys
mod refusing; // what does not start
mod stopping; // SIGTERM
mod torture; // killed, stopped and disconnected under load
mod upstream_faults; // upstreams that fail in every way
