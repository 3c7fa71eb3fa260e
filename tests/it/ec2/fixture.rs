//! One launch from one node class, which tests modify before the request is created.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use outrigger::bootstrap::BootstrapError;
use outrigger::catalog::Catalog;
use outrigger::ec2::create_fleet::{FleetRequest, FleetRequestInput};
use outrigger::ec2::launch_template::{LaunchTemplate, RenderedUserData, TemplateTarget};
use outrigger::ec2::subnet_capacity::Subnets;
use outrigger::model::claim::{ClaimOrigin, ClaimRecord};
use outrigger::model::id::TypeName;
use outrigger::model::instance::{Arch, CapacityType, OfferingKey};
use outrigger::model::labels::Labels;
use outrigger::model::node_class::image::AmiFamily;
use outrigger::model::node_class::resolved::{Image, ResolvedNodeClass, SecurityGroup, Subnet};
use outrigger::model::node_class::{NodeClass, NodeIdentity};
use outrigger::model::reservation::Reservation;
use outrigger::provider::{CommandResult, Launch};

pub(super) const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// The inputs of a request.
#[derive(Clone)]
pub(super) struct Scene {
    pub(super) launch: Launch,
    pub(super) class: NodeClass,
    pub(super) resolved: ResolvedNodeClass,
    pub(super) images: BTreeMap<TypeName, String>,
    pub(super) catalog: Catalog,
    pub(super) cluster: String,
    pub(super) region: String,
    pub(super) ipv6: bool,
    /// Text in the user data before the image and the maximum number of pods.
    pub(super) token: String,
    /// Whether the user data has the maximum number of pods.
    pub(super) counts_pods: bool,
    pub(super) subnets: Subnets,
}

/// Returns the offering of `type zone capacity-type`, with an optional reservation id.
pub(super) fn offering(text: &str) -> OfferingKey {
    let parts: Vec<&str> = text.split(' ').collect();
    OfferingKey {
        instance_type: parts[0].into(),
        zone: format!("us-east-1{}", parts[1]).as_str().into(),
        capacity_type: CapacityType::parse(parts[2]).expect("a capacity type"),
        reservation: parts.get(3).map(|id| Box::new((*id).into())),
    }
}

fn image(id: &str, arch: Arch) -> Image {
    Image {
        id: id.to_owned(),
        name: id.to_owned(),
        arch,
        variants: Vec::new(),
        created: None,
        deprecated: false,
    }
}

fn subnet(id: &str, zone: &str, free: u32) -> Subnet {
    Subnet { id: id.to_owned(), zone: zone.into(), zone_id: String::new(), free }
}

pub(super) fn record(id: &str) -> ClaimRecord {
    ClaimRecord {
        id: id.into(),
        installation: "here".into(),
        cluster: "prod".into(),
        origin: ClaimOrigin::default(),
        pool: "general".into(),
        node_class: Some("standard".into()),
        created: NOW,
        expire_after: None,
        expire_hard_after: None,
        termination_grace_period: None,
        pool_hash: "v2:1".into(),
        node_class_hash: "v2:2".into(),
        startup_taints: Vec::new(),
        reason: "provisioned".into(),
        command_id: "d1".into(),
    }
}

impl Scene {
    /// Returns an on-demand launch of `m5.large` in one zone from a plain class.
    pub(super) fn new() -> Self {
        let claim = record("abc");
        let mut tags = claim.to_tags();
        tags.insert("team".into(), "web".into());
        let group = |id: &str| SecurityGroup { id: id.to_owned(), name: String::new() };
        Self {
            launch: Launch {
                claim,
                offerings: vec![offering("m5.large a on-demand")],
                labels: Labels::new(),
                taints: Vec::new(),
                tags,
                devices: BTreeSet::new(),
                overlaid: false,
                relaxed: false,
                varied: false,
            },
            class: NodeClass {
                name: "standard".into(),
                family: AmiFamily::Al2023,
                identity: Some(NodeIdentity::Role("nodes".into())),
                ..NodeClass::default()
            },
            resolved: ResolvedNodeClass {
                images: vec![image("ami-x86", Arch::Amd64), image("ami-arm", Arch::Arm64)],
                subnets: vec![
                    subnet("subnet-a1", "us-east-1a", 200),
                    subnet("subnet-a2", "us-east-1a", 100),
                    subnet("subnet-b", "us-east-1b", 50),
                ],
                security_groups: vec![group("sg-1"), group("sg-2")],
                profile: Some("prod_profile".into()),
                ..ResolvedNodeClass::default()
            },
            images: ["m5.large", "m5.xlarge", "m5.2xlarge", "p5.48xlarge", "t3.micro"]
                .map(|name| (name.into(), "ami-x86".to_owned()))
                .into_iter()
                .chain([("c7g.large".into(), "ami-arm".to_owned())])
                .collect(),
            catalog: Catalog::shipped(),
            cluster: "prod".into(),
            region: "us-east-1".into(),
            ipv6: false,
            token: "token".into(),
            counts_pods: true,
            subnets: Subnets::default(),
        }
    }

    /// Sets these offerings.
    pub(super) fn with_offerings(mut self, offerings: &[&str]) -> Self {
        self.launch.offerings = offerings.iter().map(|own| offering(own)).collect();
        self
    }

    /// Adds this reservation of `m5.large` in the first zone.
    pub(super) fn with_reservation(mut self, own: Reservation) -> Self {
        let all = [("m5.large".into(), "us-east-1a".into(), own)];
        self.catalog = self.catalog.with_reservations(all);
        self
    }

    /// Returns the request, or the result if no request is possible.
    pub(super) fn try_request(&mut self) -> Result<FleetRequest, Box<CommandResult>> {
        let input = FleetRequestInput {
            launch: &self.launch,
            class: &self.class,
            resolved: &self.resolved,
            images: &self.images,
            catalog: &self.catalog,
            site: TemplateTarget { cluster: &self.cluster, region: &self.region, ipv6: self.ipv6 },
        };
        let (token, counts_pods) = (self.token.clone(), self.counts_pods);
        let mut render = |image: &Image, pods: i64| {
            let pods = if counts_pods { pods } else { 0 };
            if token.is_empty() {
                return Err(BootstrapError::UserData {
                    format: "a test",
                    reason: "there is no token".to_owned(),
                });
            }
            let text = format!("{token} {} {pods}", image.name);
            Ok(RenderedUserData::new(text.into_bytes()))
        };
        input.build_request(&mut self.subnets, &mut render, NOW)
    }

    /// Returns the request, which must be possible.
    pub(super) fn request(&mut self) -> FleetRequest {
        self.try_request().expect("a request")
    }

    /// Returns the only template.
    pub(super) fn template(&mut self) -> LaunchTemplate {
        let mut configs = self.request().configs;
        assert_eq!(configs.len(), 1);
        configs.remove(0).template
    }
}
