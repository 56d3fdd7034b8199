//! The gateway as its users have it: the real binary, real sockets, scripted upstreams.

mod support;

mod admin; // /livez, /readyz, /metrics, logs
mod admin_api; // what operators see and decide
mod admin_fuzz; // the OpenAPI document is the truth
mod breaker; // a store that is down
mod canary; // a store that has lost data
mod configuration; // config, routes, explain
mod contract; // services that complete in their own transaction
mod contract_languages; // the same with the drivers of other languages
mod cors; // pages in browsers
mod demo; // the story
mod deploy; // the image and the unit
mod doctor; // whether a store can be relied on
mod doctor_dynamodb; // the same of a table of DynamoDB
mod doctor_stores; // the same of the other stores
mod dynamodb; // records in a table of DynamoDB
mod exit_codes; // how it ends
mod http2_clients; // clients that speak HTTP/2 and go away
mod http2_faults; // upstreams that speak HTTP/2 and fail
mod in_flight; // duplicates of what is at work, at one gateway and at two
mod ledger; // what the provider says
mod ledger_large; // more of it than is kept in memory
mod log_lines; // one for each decision, and no secret in it
mod messages; // of the outbox, at the hands of operators
mod limits; // what clients may take up
mod migrate; // schemas, ahead of a start
mod operate; // commands of operators
mod pages; // the commands that they type
mod passing; // what goes through, and how it is changed
mod privacy; // what is in the store
mod protecting; // keys
mod provider_ids; // what providers call operations
mod queued; // accepted now, executed later
mod quota; // what one caller may ask for
mod raw; // bytes that mean two things
mod readme; // its commands
mod relay; // messages of the outbox, delivered by the gateway
mod reloading; // SIGHUP
mod redis;
mod refusing; // what does not start
mod reconciling; // unknown outcomes, asked about
mod settling; // unknown outcomes, by key, by operators, and with the workers elsewhere
mod routes; // rules that differ from route to route
mod shadow; // what would have been done
mod stopping; // SIGTERM
mod streaming; // trailers, consent, other protocols
mod tls; // certificates, both sides
mod torture; // killed, stopped and disconnected under load
mod upstream_faults; // upstreams that fail in every way
mod workers; // what is done though no client comes
