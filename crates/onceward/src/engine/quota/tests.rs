use super::*;

fn scope(name: &str) -> Scope {
    Scope::new(name).expect("a scope")
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn creations(rate: Rate) -> Limits {
    Limits { creations: Some(rate), ..Limits::OFF }
}

/// Creates a key whose attempt ends at once.
fn create(quota: &Arc<Quota>, limits: &Limits, name: &str, now: Instant) -> Result<(), Exceeded> {
    let mut place = quota.place(limits, &scope(name), now)?.expect("limited");
    place.granted(true);
    Ok(())
}

#[test]
fn a_burst_is_used_up_and_comes_back_one_by_one() {
    let (quota, now) = (Arc::new(Quota::default()), Instant::now());
    let limits = creations(Rate::per_second(10).burst(3));
    for _ in 0..3 {
        create(&quota, &limits, "acme", now).expect("in the burst");
    }
    let refused = create(&quota, &limits, "acme", now).expect_err("used up");
    assert_eq!(refused, Exceeded { limit: "creations", retry_after: millis(100) });
    let refused = create(&quota, &limits, "acme", now + millis(60)).expect_err("used up");
    assert_eq!(refused.retry_after, millis(40));
    create(&quota, &limits, "acme", now + millis(100)).expect("one came back");
    assert!(create(&quota, &limits, "acme", now + millis(100)).is_err());
    create(&quota, &limits, "other", now + millis(100)).expect("a scope of its own");
    // Not more than the burst, however long it was quiet.
    let later = now + Duration::from_secs(3600);
    assert_eq!((0..10).filter(|_| create(&quota, &limits, "acme", later).is_ok()).count(), 3);
}

#[test]
fn what_was_not_created_is_given_back() {
    let (quota, now) = (Arc::new(Quota::default()), Instant::now());
    let limits = creations(Rate::per_second(1));
    for _ in 0..5 {
        drop(quota.place(&limits, &scope("acme"), now).expect("there is one"));
        let mut rerun = quota.place(&limits, &scope("acme"), now).expect("there is one");
        rerun.as_mut().expect("limited").granted(false);
    }
    create(&quota, &limits, "acme", now).expect("still there");
    assert!(create(&quota, &limits, "acme", now).is_err());
}

#[test]
fn a_place_among_the_active_is_kept_until_it_is_dropped() {
    let (quota, now) = (Arc::new(Quota::default()), Instant::now());
    let limits = Limits { active: Some(2), ..Limits::OFF };
    let place = || quota.place(&limits, &scope("acme"), now);
    let mut first = place().expect("free").expect("limited");
    first.granted(true);
    let _second = place().expect("free");
    assert_eq!(place().expect_err("full").limit, "active");
    drop(first);
    assert!(place().is_ok());
}

#[test]
fn lookups_have_a_bucket_of_their_own() {
    let (quota, now) = (Arc::new(Quota::default()), Instant::now());
    let limits = Limits { lookups: Some(Rate::per_second(2)), ..Limits::OFF };
    let look = |now| quota.look(&limits, &scope("acme"), now);
    assert!(look(now).is_ok() && look(now).is_ok());
    let refused = look(now).expect_err("used up");
    assert_eq!(refused, Exceeded { limit: "lookups", retry_after: millis(500) });
    assert!(look(now + millis(500)).is_ok());
    assert!(quota.place(&limits, &scope("acme"), now).expect("not limited").is_none());
    assert!(quota.look(&Limits::OFF, &scope("acme"), now).is_ok());
}

#[test]
fn other_limits_hold_at_once_for_what_was_used_before() {
    let (quota, now) = (Arc::new(Quota::default()), Instant::now());
    create(&quota, &creations(Rate::per_second(1)), "acme", now).expect("one");
    let wider = creations(Rate::per_second(1).burst(3));
    create(&quota, &wider, "acme", now).expect("two");
    create(&quota, &wider, "acme", now).expect("three");
    assert!(create(&quota, &wider, "acme", now).is_err());
}

#[test]
fn memory_is_bounded_and_those_who_used_the_most_are_remembered() {
    let quota = Arc::new(Quota { scopes: Mutex::default(), scopes_max: 80 });
    let now = Instant::now();
    let limits = creations(Rate::per_second(1).burst(5));
    let _at_work = quota.place(&limits, &scope("at work"), now).expect("free");
    for _ in 0..5 {
        create(&quota, &limits, "greedy", now).expect("in the burst");
    }
    for number in 0..10_000 {
        create(&quota, &limits, &format!("scope {number}"), now).expect("in the burst");
        assert!(quota.scopes().len() <= 80);
    }
    assert!(quota.scopes().len() > 60, "no more is forgotten than has to be");
    assert!(quota.scopes().contains_key(&scope("at work")));
    assert!(create(&quota, &limits, "greedy", now).is_err(), "not forgotten");
    // Later all quotas are whole again, and nobody needs to be remembered but who is at work.
    let later = now + Duration::from_secs(60);
    for number in 0..30 {
        create(&quota, &limits, &format!("later {number}"), later).expect("in the burst");
    }
    assert!(quota.scopes().len() < 60, "{}", quota.scopes().len());
}
