//! Instances that a user copies from ours, and tags that a user edits.

use std::sync::Arc;

use jiff::SignedDuration;
use outrigger::model::claim::{ADOPTED, TAG_CLAIM, TAG_CLUSTER, TAG_FLEET, TAG_POOL, TAG_REASON};
use outrigger::model::instance::{Instance, InstanceState};
use outrigger::model::node::Node;
use outrigger::model::watched_object::WatchedObject;

use super::{Stage, bound, owned_pod};

const COUNT: usize = 5;

/// A settled cluster; with `names_fleets`, as on EC2, instances name the fleet that launched them.
fn settled(names_fleets: bool) -> Stage {
    let mut stage = Stage::settled(COUNT);
    let count = stage.launches.len();
    (0..count).filter(|_| names_fleets).for_each(|number| stage.name_fleet(number));
    stage.run(120, &[]);
    stage
}

impl Stage {
    /// Sets a tag of an instance, or removes it.
    fn tag(&mut self, id: &str, tag: &str, value: Option<&str>) {
        let instance = self.instances.get_mut(id).expect("the instance exists");
        let tags = Arc::make_mut(&mut instance.tags);
        match value {
            Some(value) => tags.insert(tag.to_owned(), value.to_owned()),
            None => tags.remove(tag),
        };
    }

    /// Tags an instance with the EC2 fleet that launched it.
    fn name_fleet(&mut self, number: usize) {
        let id = format!("i-{number}");
        self.tag(&id, TAG_FLEET, Some(&format!("fleet-{id}")));
    }

    /// Terminates the first instance with its Node and its pod, and removes it from listings.
    fn terminate_first(&mut self) {
        let instance = self.instances.get_mut("i-0").expect("the instance exists");
        instance.state = InstanceState::Terminated;
        self.delete_node(0);
        self.delete_pod(0);
        self.run(60, &[]);
        self.instances.remove("i-0");
    }

    /// Asserts that the first claim still has its instance, and that the engine has neither
    /// terminated nor evicted anything nor launched a replacement.
    fn assert_no_claim_but_the_first(&self, case: &str) {
        assert_eq!(self.instance_of_first_claim(), Some("i-0"), "{case}");
        let disruptions = (self.count("terminate"), self.count("evict"));
        assert_eq!(disruptions, (0, 0), "{case}");
        assert_eq!(self.launches.len(), COUNT, "{case}: no replacement");
    }

    /// "Launch more like this": copies the first instance and its tags, except the fleet tag.
    fn copy_first(&mut self, id: &str) {
        let mut copy = self.instances["i-0"].clone();
        copy.id = id.into();
        copy.launched = self.now;
        self.instances.insert(id.to_owned(), copy);
        self.tag(id, TAG_FLEET, None);
    }

    /// Registers the Node of a copy, which has the user data of the first instance, with a pod.
    fn apply_node_of_copy(&mut self, id: &str) {
        let node = self.node(0);
        let zone = &self.instances["i-0"].offering.zone;
        let node = Node {
            name: "node-copy".into(),
            uid: "uid-copy".into(),
            provider_id: format!("aws:///{zone}/{id}"),
            ..node
        };
        self.apply(WatchedObject::Node(Box::new(node)));
        self.apply(bound(owned_pod("on-the-copy"), "node-copy"));
    }

    fn restart(&mut self) {
        self.restart_after(SignedDuration::from_hours(1));
    }

    /// The instance of the first claim, if it has one.
    fn instance_of_first_claim(&self) -> Option<&str> {
        let claims = &self.engine.state().ledger.claims;
        let claim = claims.get(&self.launches[0].claim.id)?;
        claim.instance.as_ref().map(|instance| instance.id.as_str())
    }
}

#[test]
fn copied_instance_is_no_claim_and_is_never_terminated() {
    for names_fleets in [true, false] {
        // In a listing a copy may come before the original or after it.
        for copy in ["a-copy", "z-copy"] {
            for has_node in [false, true] {
                for restarts in [false, true] {
                    let case = format!("{names_fleets} {copy} {has_node} {restarts}");
                    let mut stage = settled(names_fleets);
                    stage.copy_first(copy);
                    stage.run(60, &[]);
                    if has_node {
                        stage.apply_node_of_copy(copy);
                    }
                    stage.run(60, &[]);
                    if restarts {
                        stage.restart();
                    }
                    stage.run(7_200, &[]);
                    stage.assert_no_claim_but_the_first(&case);
                    assert!(stage.engine.is_ready(), "{case}");
                }
            }
        }
    }
}

/// After a restart EC2 lists the copy before the original.
#[test]
fn original_instance_regains_its_claim_from_a_copy_that_is_listed_first() {
    for names_fleets in [true, false] {
        let mut stage = settled(names_fleets);
        stage.copy_first("a-copy");
        let original = stage.instances.remove("i-0").expect("the instance exists");
        stage.restart();
        stage.run(3, &[]);
        stage.instances.insert("i-0".to_owned(), original);
        stage.run(7_200, &[]);
        stage.assert_no_claim_but_the_first(&format!("{names_fleets}"));
    }
}

/// The original was terminated: its copy still is no claim.
#[test]
fn copied_instance_is_no_claim_after_the_original_is_terminated() {
    for restarts in [false, true] {
        let mut stage = settled(true);
        stage.copy_first("a-copy");
        stage.run(60, &[]);
        stage.terminate_first();
        stage.name_fleet(COUNT);
        let next = stage.node(COUNT);
        stage.apply(WatchedObject::Node(Box::new(next)));
        if restarts {
            stage.restart();
        }
        stage.run(7_200, &[]);
        assert_ne!(stage.instance_of_first_claim(), Some("a-copy"));
        let copy = &stage.instances["a-copy"];
        assert!(copy.state.is_live(), "{restarts}");
        let live = stage.instances.values().filter(|instance| instance.state.is_live());
        assert_eq!(live.count(), COUNT + 1, "{restarts}: one replacement for the first");
    }
}

/// A user copies our tags to an older instance that another fleet launched.
#[test]
fn older_instance_with_copied_tags_is_no_claim_and_is_never_terminated() {
    for names_fleets in [true, false] {
        for restarts in [false, true] {
            let mut stage = settled(names_fleets);
            stage.copy_first("a-copy");
            let instance = stage.instances.get_mut("a-copy").expect("the instance exists");
            instance.launched -= SignedDuration::from_hours(10);
            stage.tag("a-copy", TAG_FLEET, Some("of-karpenter"));
            stage.run(60, &[]);
            if restarts {
                stage.restart();
            }
            stage.run(7_200, &[]);
            stage.assert_no_claim_but_the_first(&format!("{names_fleets} {restarts}"));
        }
    }
}

#[test]
fn copy_of_an_adopted_instance_is_no_claim() {
    for names_fleets in [true, false] {
        let mut stage = settled(names_fleets);
        edit(&mut stage, TAG_FLEET, None);
        edit(&mut stage, TAG_REASON, Some(ADOPTED));
        edit(&mut stage, TAG_CLAIM, Some("i-0"));
        stage.restart();
        stage.copy_first("a-copy");
        stage.run(60, &[]);
        let claims = |stage: &Stage| stage.engine.state().ledger.claims.len();
        assert_eq!(claims(&stage), COUNT, "the adopted one is a claim");
        stage.terminate_first();
        stage.run(7_200, &[]);
        assert!(stage.instances["a-copy"].state.is_live(), "{names_fleets}");
        let known = &stage.engine.state().ledger;
        assert_eq!(known.by_instance("a-copy"), None, "{names_fleets}");
    }
}

/// A change of the tags of the first instance.
type Edit = fn(&mut Stage);

fn edit(stage: &mut Stage, tag: &str, value: Option<&str>) {
    stage.tag("i-0", tag, value);
}

#[test]
fn instance_with_edited_tags_is_neither_drained_nor_terminated() {
    let edits: [(&str, Edit); 5] = [
        ("claim removed", |stage| edit(stage, TAG_CLAIM, None)),
        ("claim renamed", |stage| edit(stage, TAG_CLAIM, Some("mine"))),
        ("claim of another", |stage| {
            let other = stage.launches[1].claim.id.to_string();
            edit(stage, TAG_CLAIM, Some(&other));
        }),
        ("pool removed", |stage| edit(stage, TAG_POOL, None)),
        ("fleet removed", |stage| edit(stage, TAG_FLEET, None)),
    ];
    for (name, edit) in edits {
        for restarts in [false, true] {
            for names_fleets in [false, true] {
                let case = format!("{name}, restart {restarts}, fleets {names_fleets}");
                let mut stage = settled(names_fleets);
                edit(&mut stage);
                stage.run(120, &[]);
                if restarts {
                    stage.restart();
                }
                stage.run(7_200, &[]);
                let disruptions = (stage.count("terminate"), stage.count("evict"));
                assert_eq!(disruptions, (0, 0), "{case}");
                assert_eq!(stage.count("delete_node"), 0, "{case}");
                let all = stage.launches.len();
                assert!(all <= COUNT + usize::from(restarts), "{case}: {all}");
            }
        }
    }
}

/// Listings do not contain the instance any more, since they are filtered by this tag.
#[test]
fn instance_tagged_with_another_cluster_is_neither_drained_nor_terminated() {
    for restarts in [false, true] {
        let mut stage = settled(true);
        edit(&mut stage, TAG_CLUSTER, Some("another"));
        let hidden: Vec<Instance> = stage.instances.remove("i-0").into_iter().collect();
        stage.run(120, &[]);
        if restarts {
            stage.restart();
        }
        stage.run(7_200, &[]);
        let disruptions = (stage.count("terminate"), stage.count("evict"));
        assert_eq!((disruptions, hidden.len()), ((0, 0), 1), "{restarts}");
        assert_eq!(stage.count("delete_node"), 0, "{restarts}");
    }
}
