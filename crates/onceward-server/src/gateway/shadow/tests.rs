use http::{Method, Request};
use http_body_util::Full;
use onceward::{Key, Scope};

use super::{super::budget::Budget, *};
use crate::{cli::ServeArgs, config::Config};

/// A shadow route, and requests on it.
struct World {
    shadow: Arc<Shadow>,
    route: Arc<Route>,
}

impl World {
    fn new(settings: &str) -> World {
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        let toml = format!("config_version = 1\n[defaults]\nkey = \"shadow\"\n{settings}\n");
        std::fs::write(file.path(), toml).expect("written");
        let args = ServeArgs {
            upstream: Some("http://127.0.0.1:9".to_owned()),
            config: Some(file.path().to_owned()),
            ..ServeArgs::default()
        };
        let config = Config::load(args).expect("valid");
        let route = Arc::clone(config.routes.find(&Method::POST, "/charges"));
        World { shadow: Arc::default(), route }
    }

    fn request(&self, key: &str, body: &str) -> Watched {
        let (parts, ()) = Request::post("/charges").body(()).expect("valid").into_parts();
        let scope = Scope::new("acme").expect("a scope");
        let id = RecordId { scope, key: Key::new(key).expect("a key") };
        let watched = Watched::new(&self.shadow, &self.route, &Arc::new(parts), id);
        let room = Budget::new(1).take(&Full::new(Bytes::new()), 1).expect("room");
        let mut passing = Box::new(watched.body(room));
        passing.part(&Bytes::copy_from_slice(body.as_bytes()));
        passing.end();
        watched
    }

    fn told(&self) -> Vec<&'static str> {
        self.shadow.listed().iter().map(|observation| observation.verdict.name()).collect()
    }
}

const OK: Option<StatusCode> = Some(StatusCode::OK);

#[test]
fn what_would_have_been_done_is_told() {
    let world = World::new("");
    let first = world.request("first-key", "{}");
    world.request("first-key", "{}");
    first.answered(OK);
    world.request("first-key", "{}");
    world.request("first-key", "[]");
    world.request("other-key", "{}");
    assert_eq!(
        world.told(),
        ["idempotency_key_in_progress", "replay", "idempotency_key_reused_with_different_payload"]
    );
    let listed = world.shadow.listed();
    assert_eq!((&*listed[0].route, &*listed[0].path), ("default", "/charges"));
    assert!(!format!("{listed:?}").contains("first-key"));
}

#[test]
fn an_answer_that_would_not_have_been_kept_is_not_taken_for_a_reply() {
    let world = World::new("");
    for status in [503, 429] {
        world.request("same-key", "{}").answered(StatusCode::from_u16(status).ok());
    }
    world.request("same-key", "{}").answered(None);
    assert!(world.told().is_empty(), "each of them ran: {:?}", world.told());
    world.request("same-key", "{}");
    assert_eq!(world.told(), ["idempotency_outcome_unknown"]);
}

#[test]
fn a_late_answer_to_an_earlier_request_is_not_taken_for_that_of_a_later_one() {
    let world = World::new("");
    let first = world.request("same-key", "{}");
    first.answered(Some(StatusCode::SERVICE_UNAVAILABLE));
    world.request("same-key", "{}");
    first.answered(OK);
    world.request("same-key", "{}");
    assert_eq!(world.told(), ["idempotency_key_in_progress"]);
}

#[test]
fn a_body_over_the_cap_would_have_been_refused_and_one_of_its_size_not() {
    let world = World::new("request_bytes_max = 10");
    world.request("first-key", &"x".repeat(10));
    assert!(world.told().is_empty());
    world.request("other-key", &"x".repeat(11));
    assert_eq!(world.told(), ["idempotency_body_too_large"]);
}

#[test]
fn what_is_remembered_and_listed_is_bounded_and_the_oldest_goes_first() {
    let world = World::new("");
    for number in 0..=KEYS_MAX {
        world.request(&format!("key-{number}"), "{}").answered(OK);
    }
    assert_eq!(world.shadow.lock().keys.len(), KEYS_MAX);
    world.request("key-0", "{}");
    assert!(world.told().is_empty(), "it was forgotten");
    for _ in 0..=LISTED_MAX {
        world.request(&format!("key-{KEYS_MAX}"), "{}");
    }
    assert_eq!(world.told().len(), LISTED_MAX);
}
