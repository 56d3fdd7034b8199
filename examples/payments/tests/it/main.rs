//! The application and its bank as real processes, on both databases, with whatever can die in
//! between. The bank's ledger is the truth.

mod support; // processes, databases, and a client that retries

/// The same tests on SQLite and on PostgreSQL.
macro_rules! on_both {
    ($($name:ident),+ $(,)?) => {
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(crate::support::Store::file()).await;
            })+
        }
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(crate::support::Store::postgres()).await;
            })+
        }
    };
}

mod golden; // the whole way of a payment
mod banks; // a bank that declines, or whose answers are lost
mod killed; // the application dies, at every edge and under load
mod databases; // PostgreSQL dies, and connections to it
mod nodes; // two of them on one database
