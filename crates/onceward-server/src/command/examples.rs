//! Examples, with which the help of commands ends. Each is one that its command understands.

pub(super) const KEYS: &str = "\
Examples:
  onceward keys list --filter state=unknown --filter older_than=1h
  onceward keys show --scope acme --key order-0000000000000001
  onceward keys resolve ID --completed --status 201 --body '{\"id\":7}' \\
      --reason 'ticket 7' --evidence 'the ledger of the provider'
  onceward keys release --filter state=unknown --reason 'ticket 8' --evidence 'provider was down'
  onceward keys release --apply PLAN:HASH
  onceward keys export --filter route='POST /v1/**' > records.jsonl";

pub(super) const KEYS_LIST: &str = "\
Examples:
  onceward keys list --filter state=unknown --filter older_than=1h
  onceward keys list --filter key_prefix=order- --sort expires_at --order ascending -o json";

pub(super) const KEYS_SHOW: &str = "\
Examples:
  onceward keys show ID
  onceward keys show --scope acme --key order-0000000000000001 -o json";

pub(super) const KEYS_RESOLVE: &str = "\
Examples:
  onceward keys resolve ID --completed --status 201 --body '{\"id\":7}' \\
      --reason 'ticket 7' --evidence 'the ledger of the provider'
  onceward keys resolve ID --not-executed \\
      --reason 'ticket 8' --evidence 'the provider has no charge'";

pub(super) const KEYS_RELEASE: &str = "\
Examples:
  onceward keys release ID --reason 'ticket 8' --evidence 'the provider has no charge'
  onceward keys release --filter state=unknown --reason 'ticket 8' --evidence 'provider was down'
  onceward keys release --apply PLAN:HASH";

pub(super) const KEYS_VOID: &str = "\
Examples:
  onceward keys void ID --reason 'ticket 9: it was cancelled by hand'
  onceward keys void --filter 'route=POST /v1/charges' --filter older_than=2h --reason 'ticket 9'
  onceward keys void --apply PLAN:HASH";

pub(super) const KEYS_EXPORT: &str = "\
Examples:
  onceward keys export --filter route='POST /v1/**' > records.jsonl
  onceward keys export --filter finished_from=2026-01-01T00:00:00Z > january.jsonl";

pub(super) const UNKNOWN: &str = "\
Examples:
  onceward unknown list
  onceward unknown reconcile --filter older_than=1h --reason 'ticket 7: the provider is back'";

pub(super) const UNKNOWN_LIST: &str = "\
Examples:
  onceward unknown list
  onceward unknown list --filter scope=acme -o json";

pub(super) const UNKNOWN_RECONCILE: &str = "\
Examples:
  onceward unknown reconcile ID --reason 'ticket 7: the provider is back'
  onceward unknown reconcile --filter older_than=1h --reason 'ticket 7: the provider is back'
  onceward unknown reconcile --apply PLAN:HASH";

pub(super) const OUTBOX: &str = "\
Examples:
  onceward outbox list
  onceward outbox list --state dead --sink ledger
  onceward outbox show 12";

pub(super) const OUTBOX_LIST: &str = "\
Examples:
  onceward outbox list
  onceward outbox list --state dead --sink ledger --older-than 1h";

pub(super) const OUTBOX_SHOW: &str = "\
Examples:
  onceward outbox show 12
  onceward outbox show 12 -o json";

pub(super) const DLQ: &str = "\
Examples:
  onceward dlq list
  onceward dlq redrive ID --reason 'ticket 7: the provider is back'
  onceward dlq redrive --filter 'route=POST /v1/charges' --reason 'ticket 7: the provider is back'
  onceward dlq redrive --apply PLAN:HASH
  onceward dlq redrive 12 --reason 'ticket 8: the sink is mended'
  onceward dlq redrive --messages --filter sink=ledger --reason 'ticket 8: the sink is mended'
  onceward dlq discard 12 --reason 'ticket 9: the order was cancelled'
  onceward dlq discard --filter sink=ledger --filter older_than=7d --reason 'ticket 9'";

pub(super) const DLQ_LIST: &str = "\
Examples:
  onceward dlq list
  onceward dlq list --filter sink=ledger --limit 20";

pub(super) const DLQ_REDRIVE: &str = "\
Examples:
  onceward dlq redrive ID --reason 'ticket 7: the provider is back'
  onceward dlq redrive 12 --reason 'ticket 8: the sink is mended'
  onceward dlq redrive --messages --filter sink=ledger --reason 'ticket 8: the sink is mended'
  onceward dlq redrive --apply PLAN:HASH";

pub(super) const DLQ_DISCARD: &str = "\
Examples:
  onceward dlq discard 12 --reason 'ticket 9: the order was cancelled'
  onceward dlq discard --filter sink=ledger --filter older_than=7d --reason 'ticket 9'
  onceward dlq discard --apply PLAN:HASH";

pub(super) const AUDIT: &str = "\
Examples:
  onceward audit
  onceward audit --event voided --from 2026-01-01T00:00:00Z -o json";

pub(super) const STATS: &str = "\
Examples:
  onceward stats
  onceward stats -o json";

pub(super) const PRIVACY: &str = "\
Examples:
  onceward privacy new-key > /etc/onceward/seal-2026-11
  onceward privacy erase --scope acme --reason 'ticket 9'
  onceward privacy erase --scope acme --reason 'ticket 9' --apply";

pub(super) const PRIVACY_NEW_KEY: &str = "\
Examples:
  onceward privacy new-key > /etc/onceward/seal-2026-11";

pub(super) const PRIVACY_ERASE: &str = "\
Examples:
  onceward privacy erase --scope acme --reason 'ticket 9'
  onceward privacy erase --scope acme --reason 'ticket 9' --apply";

pub(super) const STORE: &str = "\
Examples:
  onceward store status
  onceward store acknowledge --reason 'ticket 10: compared with the provider'";

pub(super) const STORE_STATUS: &str = "\
Examples:
  onceward store status
  onceward store status -o json";

pub(super) const STORE_ACKNOWLEDGE: &str = "\
Examples:
  onceward store acknowledge --reason 'ticket 10: compared with the provider'";

pub(super) const MIGRATE_PLAN: &str = "\
Examples:
  onceward migrate plan --config onceward.toml
  onceward migrate plan --store postgres://app@db/shop -o json";

pub(super) const MIGRATE_UP: &str = "\
Examples:
  onceward migrate up --config onceward.toml";

pub(super) const MIGRATE_STATUS: &str = "\
Examples:
  onceward migrate status --store postgres://app@db/shop
  onceward migrate status --config onceward.toml -o json";

pub(super) const OPENAPI: &str = "\
Examples:
  onceward openapi > openapi.json";

pub(super) const COMPLETIONS: &str = "\
Examples:
  onceward completions bash > /etc/bash_completion.d/onceward
  onceward completions zsh > ~/.zfunc/_onceward";
