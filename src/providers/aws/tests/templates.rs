//! Launch templates: creation, sharing between hosts, and removal when unused. Source: the cases of
//! spec/aws.md §12.10.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::SignedDuration;

use super::canned::{FakeAws, REGION, RecordedRequest, Reply};
use crate::ec2::cleanup_scope::CleanupScope;
use crate::ec2::launch_template::{LaunchTemplate, TemplateTarget, Variation, build_template};
use crate::ec2::launch_template_cache::LaunchTemplateCache;
use crate::host::clock;
use crate::model::node_class::NodeClass;
use crate::model::node_class::resolved::ResolvedNodeClass;
use crate::outbound::fence;
use crate::providers::aws::launch_templates::Templates;

/// The templates of EC2 by name, and an operation that fails.
#[derive(Default)]
struct Stored {
    names: BTreeSet<String>,
    fails: Option<(&'static str, &'static str)>,
}

impl Stored {
    fn answer(&mut self, request: &RecordedRequest) -> Reply {
        if let Some((operation, code)) = self.fails
            && operation == request.operation
        {
            return Reply::Error(code, "why");
        }
        let mut lines = request.body.lines();
        let name = lines.find_map(|line| line.strip_prefix("LaunchTemplateName="));
        let name = name.unwrap_or_default().to_owned();
        let exists = "InvalidLaunchTemplateName.AlreadyExistsException";
        let unknown = "InvalidLaunchTemplateName.NotFoundException";
        match request.operation.as_str() {
            "CreateLaunchTemplate" if !self.names.insert(name.clone()) => {
                Reply::Error(exists, "two")
            }
            "DeleteLaunchTemplate" if !self.names.remove(&name) => Reply::Error(unknown, "none"),
            "DescribeLaunchTemplates" => {
                let all = self.names.iter();
                let all = all.map(|name| {
                    format!("<item><launchTemplateName>{name}</launchTemplateName></item>")
                });
                let all: String = all.collect();
                Reply::Xml(format!("<launchTemplates>{all}</launchTemplates>"))
            }
            _ => Reply::Xml(String::new()),
        }
    }
}

fn aws() -> (Arc<Mutex<Stored>>, FakeAws) {
    let stored = Arc::<Mutex<Stored>>::default();
    let shared = stored.clone();
    let aws = FakeAws::new(move |request| shared.lock().expect("no panic").answer(request));
    (stored, aws)
}

/// A template of an image.
fn of_image(image: &str) -> LaunchTemplate {
    let site = TemplateTarget { cluster: "one", region: REGION, ipv6: false };
    let variation = Variation { image, ..Variation::default() };
    build_template(&NodeClass::default(), &ResolvedNodeClass::default(), site, variation)
}

#[tokio::test]
async fn launch_template_is_created_once() {
    let (stored, aws) = aws();
    let account = aws.account(REGION);
    let templates = Templates::default();
    // Denied at first, then retried.
    stored.lock().expect("no panic").fails =
        Some(("CreateLaunchTemplate", "UnauthorizedOperation"));
    let fault = fence::run_unfenced(templates.ensure_exists(&account, &of_image("ami-1"))).await;
    let fault = fault.expect_err("a fault").to_failure("ec2");
    assert!(fault.text.contains("ec2:CreateLaunchTemplate"), "{fault:?}");
    stored.lock().expect("no panic").fails = None;
    for _ in 0..3 {
        let name = fence::run_unfenced(templates.ensure_exists(&account, &of_image("ami-1"))).await;
        assert_eq!(name.expect("a name"), of_image("ami-1").name());
    }
    let twice = "CreateLaunchTemplate CreateLaunchTemplate";
    assert_eq!(aws.operations(), twice);
    // Another host has created the same template, which is named by its content.
    let other = Templates::default();
    let name = fence::run_unfenced(other.ensure_exists(&account, &of_image("ami-1"))).await;
    assert_eq!(name.expect("a name"), of_image("ami-1").name());
    // A template that EC2 reports as missing is created again.
    let name = of_image("ami-1").name();
    stored.lock().expect("no panic").names.clear();
    templates.forget_missing(std::slice::from_ref(&name)).await;
    aws.take_requests();
    let made = fence::run_unfenced(templates.ensure_exists(&account, &of_image("ami-1"))).await;
    assert_eq!(made.expect("a name"), name);
    assert_eq!(aws.operations(), "CreateLaunchTemplate");
}

#[tokio::test]
async fn unused_launch_templates_are_removed() {
    let (stored, aws) = aws();
    let account = aws.account(REGION);
    let care = CleanupScope::of_all(&[]);
    let long_ago = clock::now() - SignedDuration::from_mins(11);
    let mut cache = LaunchTemplateCache::default();
    cache.begin_use("outrigger/one/in-use", long_ago);
    cache.apply_listing(["outrigger/one/a", "outrigger/one/b"].map(str::to_owned), long_ago);
    let templates = Templates::from_cache(cache);
    // Templates of other owners, and of an earlier run of this daemon, which is kept for a while.
    let names = [
        "karpenter.k8s.aws/1234",
        "outrigger/one/earlier",
        "outrigger/one/in-use",
        "outrigger/one/a",
        "outrigger/one/b",
    ];
    let names = names.map(str::to_owned);
    stored.lock().expect("no panic").names.extend(names);
    // A failed removal is reported and retried later.
    stored.lock().expect("no panic").fails = Some(("DeleteLaunchTemplate", "InternalError"));
    let fault = fence::run_unfenced(templates.delete_unused(&account, "here", &care)).await;
    assert!(fault.expect_err("a fault").has_code(&["InternalError"]));
    let request = aws.take_requests().remove(0);
    assert!(request.contains("Filter.1.Name=tag:outrigger.dev/installation"));
    assert!(request.contains("Filter.1.Value.1=here"), "{request:?}");
    stored.lock().expect("no panic").fails = None;
    let removed = fence::run_unfenced(templates.delete_unused(&account, "here", &care)).await;
    assert_eq!(removed.expect("a number"), 1);
    let left = stored.lock().expect("no panic").names.clone();
    let left: Vec<&str> = left.iter().map(String::as_str).collect();
    // Templates of other owners are not deleted.
    let kept = [
        "karpenter.k8s.aws/1234",
        "outrigger/one/a",
        "outrigger/one/earlier",
        "outrigger/one/in-use",
    ];
    assert_eq!(left, kept);
    // A template that is already deleted counts as removed.
    let mut cache = LaunchTemplateCache::default();
    cache.apply_listing(["outrigger/one/gone".to_owned()], long_ago);
    let unknown = "InvalidLaunchTemplateName.NotFoundException";
    stored.lock().expect("no panic").fails = Some(("DeleteLaunchTemplate", unknown));
    let templates = Templates::from_cache(cache);
    let removed = fence::run_unfenced(templates.delete_unused(&account, "here", &care)).await;
    assert_eq!(removed.expect("a number"), 1);
}

/// A slow creation delays only the launches with this template.
#[tokio::test(start_paused = true)]
async fn slow_creation_delays_no_other_template() {
    let slow = of_image("ami-slow").name();
    let aws = FakeAws::new(move |request| {
        let is_slow = request.body.lines().any(|line| line.ends_with(&slow));
        if is_slow { Reply::NoResponse(Duration::from_secs(10)) } else { Reply::Xml(String::new()) }
    });
    let account = aws.account(REGION);
    let templates = Templates::default();
    let create = async |image: &'static str| {
        let began = clock::monotonic_now();
        let template = of_image(image);
        let created = templates.ensure_exists(&account, &template);
        (fence::run_unfenced(created).await.is_ok(), began.elapsed() >= Duration::from_secs(10))
    };
    let ((slow, is_late), fast, again) =
        tokio::join!(create("ami-slow"), create("ami-1"), create("ami-1"));
    assert_eq!(((slow, is_late), fast, again), ((false, true), (true, false), (true, false)));
    let created = aws.operations().matches("CreateLaunchTemplate").count();
    assert_eq!(created, 2, "one for each template");
}
