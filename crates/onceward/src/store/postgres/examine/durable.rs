//! What a crash or a failover takes with it.

use super::{Finding, Look, Looked};

impl Look<'_> {
    pub(super) async fn durability(&mut self) -> Looked {
        let fsync = self.setting("fsync").await?;
        let pages = self.setting("full_page_writes").await?;
        let commit = self.setting("synchronous_commit").await?;
        Ok(vec![
            if fsync == "on" {
                Finding::ok("fsync", fsync)
            } else {
                Finding::volatile(
                    "fsync",
                    fsync,
                    "switch it on: a crash of the machine can damage the database beyond repair",
                )
            },
            if pages == "on" {
                Finding::ok("full_page_writes", pages)
            } else {
                Finding::volatile(
                    "full_page_writes",
                    pages,
                    "switch it on, unless the file system never tears a page: a crash can damage pages",
                )
            },
            match &*commit {
                "off" => Finding::volatile(
                    "synchronous_commit",
                    commit,
                    "set it to on for this role or database: a crash forgets the last commits, and \
                     with them that something ran",
                ),
                "remote_write" => Finding::note(
                    "synchronous_commit",
                    commit,
                    "a standby has it in memory only when a commit is acknowledged; `on` waits for \
                     its disk",
                ),
                _ => Finding::ok("synchronous_commit", commit),
            },
            self.checksums().await?,
        ])
    }

    async fn checksums(&mut self) -> Result<Finding, sqlx::Error> {
        const NAME: &str = "data_checksums";
        let on = self.setting(NAME).await?;
        Ok(match &*on {
            "on" => Finding::ok(NAME, on),
            _ => Finding::note(
                NAME,
                on,
                "a disk that gives back other bytes than it was given is not found out; \
                 pg_checksums can switch them on",
            ),
        })
    }

    /// Whether a commit that was acknowledged survives the loss of this server.
    pub(super) async fn standbys(&mut self) -> Looked {
        const NAME: &str = "synchronous standbys";
        let names = self.setting("synchronous_standby_names").await?;
        let commit = self.setting("synchronous_commit").await?;
        let standbys = self
            .rows("SELECT state, sync_state FROM pg_stat_replication WHERE state IS DISTINCT FROM 'backup'")
            .await?;
        let hidden = standbys.iter().any(|row| row[1].is_none());
        let waited_for =
            standbys.iter().filter(|row| matches!(row[1].as_deref(), Some("sync" | "quorum")));
        let (all, waited_for) = (standbys.len(), waited_for.count());
        let advice_loss = "a failover can lose acknowledged commits: name a synchronous standby in \
                           synchronous_standby_names, or rely on the canary to find a loss out";
        Ok(vec![if names.is_empty() && all == 0 {
            Finding::note(
                NAME,
                "none, and no standby is connected",
                "this server's disks alone hold the records: have backups, or a synchronous standby",
            )
        } else if names.is_empty() {
            Finding::note(
                NAME,
                format!("none; {all} standby(s) follow without being waited for"),
                advice_loss,
            )
        } else if hidden {
            Finding::note(
                NAME,
                format!("`{names}` are to be waited for; this role may not see who follows"),
                "grant pg_read_all_stats to the role for a closer look",
            )
        } else if matches!(&*commit, "local" | "off") {
            Finding::note(
                NAME,
                format!("`{names}` are named, but synchronous_commit is {commit}"),
                advice_loss,
            )
        } else if waited_for == 0 {
            Finding::broken(
                NAME,
                format!("`{names}` are to be waited for, and none of them is connected"),
                "start one, or change synchronous_standby_names: until then no commit ends",
            )
        } else {
            Finding::ok(NAME, format!("{waited_for} of {all} standby(s) are waited for"))
        }])
    }
}
