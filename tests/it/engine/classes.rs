//! Node classes that become ready, or not, while pods wait.
//! It must not know what makes a class ready.

use std::sync::Arc;

use outrigger::catalog::class::{ClassCatalog, ClassSupply};
use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::cluster::Mode;
use outrigger::model::object::Object;
use outrigger::solve::Code;

use super::{Stage, waiting_pod};

impl Stage {
    /// The provider says whether the class is ready.
    fn class(&mut self, supply: Result<(), &str>) {
        let supply = match supply {
            Ok(()) => Ok(ClassCatalog {
                catalog: self.engine.state().catalog.clone(),
                images: [].into(),
            }),
            Err(why) => Err(why.to_owned()),
        };
        let all = [("x".into(), ClassSupply { supply })].into();
        self.event(Event::ClassesChanged(Arc::new(all)));
    }
}

#[test]
fn pods_wait_for_their_class_and_are_planned_once_it_is_ready() {
    let mut stage = Stage::new(Mode::Manage);
    stage.change(|cluster| cluster.pools[0].node_class = Some("x".into()));
    stage.class(Err("ImageNotFound: no image is called my-*"));
    stage.sync(vec![], vec![]);
    stage.apply(Object::Pod(Box::new(waiting_pod("a"))));
    stage.run(60, &[]);
    assert_eq!(stage.launches.len(), 0);
    let told: Vec<(Code, String)> = stage
        .reports
        .iter()
        .filter_map(|report| match report {
            Report::Unplaced(own) => Some((own.reasons[0].code, own.reasons[0].text())),
            _ => None,
        })
        .collect();
    let why = "node class \"x\" is not ready: ImageNotFound: no image is called my-*";
    assert_eq!(told, [(Code::NodeClass, why.to_owned())]);
    stage.class(Ok(()));
    stage.run(2, &[]);
    assert_eq!(stage.launches.len(), 1);
    // What is on its way is no concern of a class that fails later.
    stage.class(Err("SubnetsNotFound: none"));
    stage.run(5, &[]);
    assert_eq!((stage.launches.len(), stage.count("terminate")), (1, 0));
}
