//! Who stands between us and the server.

use sqlx::{ConnectOptions as _, Connection as _, Row as _};
use tokio::time::timeout;

use super::{Finding, Look, Looked};
use crate::store::postgres::{link::CONNECT_TIME_MAX, open};

const NAME: &str = "pool";

impl Look<'_> {
    pub(super) async fn pool(&mut self) -> Looked {
        // A pool or a proxy connects to the server at another address than we did.
        let port = self.one("SELECT inet_server_port()::text").await?;
        let between = !port.is_empty() && port != self.address.get_port().to_string();
        let forgets = open::forgets_statements(&mut self.connection, self.options).await?;
        if forgets {
            // The connection has an answer left that nobody waits for.
            self.connection = open::connect(self.options).await?;
        }
        let version = if between || forgets { self.pgbouncer().await } else { None };
        let who = match &version {
            Some(version) => version.clone(),
            None if between => format!("something that leads to port {port} of the server"),
            None => "none".to_owned(),
        };
        Ok(vec![if forgets {
            Finding::broken(
                NAME,
                format!("{who}; statements that were prepared are forgotten between transactions"),
                "use PgBouncer 1.21 or later with max_prepared_statements, or a pool in session mode",
            )
        } else if between {
            Finding::ok(NAME, format!("{who}; prepared statements are kept"))
        } else {
            Finding::ok(NAME, who)
        }])
    }

    /// What PgBouncer says of itself, if it is there and lets us ask.
    async fn pgbouncer(&self) -> Option<String> {
        let admin = self.address.clone().database("pgbouncer").disable_statement_logging();
        let mut admin = timeout(CONNECT_TIME_MAX, admin.connect()).await.ok()?.ok()?;
        let version =
            timeout(CONNECT_TIME_MAX, sqlx::raw_sql("SHOW VERSION").fetch_one(&mut admin));
        let version = version.await.ok()?.ok()?.try_get::<String, _>(0).ok();
        // Nothing was begun on it.
        let _ = admin.close().await;
        version
    }
}
