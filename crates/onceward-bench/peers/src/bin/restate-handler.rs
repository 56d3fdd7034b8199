//! The service that Restate calls: the same payment, in and out as bytes.

use bytes::Bytes;
use restate_sdk::prelude::*;
use tokio::net::TcpListener;

// What the load sends is there too.
#[allow(dead_code)]
#[path = "../../../src/postgres/payment.rs"]
mod payment;
#[path = "../serves.rs"]
mod serves;

struct Payments;

#[service]
impl Payments {
    #[handler]
    async fn pay(&self, _context: Context<'_>, order: Bytes) -> Result<Bytes, HandlerError> {
        Ok(payment::pay(&order).1.into())
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    serves::say(listener.local_addr()?);
    HttpServer::new(Endpoint::builder().bind(Payments).build()).serve(listener).await;
    Ok(())
}
