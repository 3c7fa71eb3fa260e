//! Each permission of the policy is removed in turn. The call that needs it fails with an error
//! that names the missing permission and its policy statement, and succeeds with the permission.
//!
//! The proxy in front of moto denies actions that are not allowed, including calls that moto does
//! not implement. It does not evaluate the resources and conditions of a policy.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::types::Message;
use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use tokio::sync::mpsc;

use crate::ec2::cleanup_scope::CleanupScope;
use crate::ec2::iam_policy::{STATEMENTS, granting_statement};
use crate::ec2::launch_template_cache::{KEPT, LaunchTemplateCache};
use crate::engine::command::Command;
use crate::engine::event::Event;
use crate::host::clock;
use crate::model::claim::{ClaimOrigin, ClaimRecord};
use crate::model::cluster::Cluster;
use crate::model::id::ClaimId;
use crate::model::instance::{CapacityType, Instance, OfferingKey};
use crate::model::labels::{Labels, TAINT_UNREGISTERED};
use crate::model::node_class::NodeIdentity;
use crate::model::node_class::bootstrap::{Bootstrap, SecretSource};
use crate::model::node_class::image::{AmiFamily, ImageTerm};
use crate::model::taint::{Effect, Taint};
use crate::model::template_hash::node_class_hash;
use crate::outbound::fence;
use crate::provider::{CommandResult, FailureKind, Launch};
use crate::providers::aws::clients::{AccountKey, Accounts, AwsClients};
use crate::providers::aws::error::AwsError;
use crate::providers::aws::images::Images;
use crate::providers::aws::instance_profiles::Profiles;
use crate::providers::aws::join_secrets::JoinSecrets;
use crate::providers::aws::launch_templates::Templates;
use crate::providers::aws::provider::Ec2;
use crate::providers::aws::region::Regions;
use crate::providers::aws::tests::idle_calls::api;
use crate::providers::aws::tests::moto::Aws;
use crate::providers::aws::{
    cluster_info, instance_status, instance_types, network, pricing, sqs, zonal_shift,
};
use crate::providers::interface::Provider;

/// The result of an operation: success, or the message for the user.
type Outcome = Result<(), String>;

/// An operation of the daemon.
type Operation = for<'s> fn(&'s mut Stage) -> BoxFuture<'s, Outcome>;

/// Permissions with the operations that need them.
const OPERATIONS: &[(&str, Operation)] = &[
    ("ec2:DescribeInstanceTypes", |it| outcome_of("ec2", instance_types::list_types(&it.account))),
    ("ec2:DescribeInstanceTypeOfferings", |it| {
        outcome_of("ec2", instance_types::list_offerings(&it.account))
    }),
    ("ec2:DescribeSubnets", |it| outcome_of("ec2", network::list_subnets(&it.account))),
    ("ec2:DescribeSecurityGroups", |it| {
        outcome_of("ec2", network::list_security_groups(&it.account))
    }),
    ("ec2:DescribePlacementGroups", |it| {
        outcome_of("ec2", network::list_placement_groups(&it.account))
    }),
    ("ec2:DescribeCapacityReservations", |it| {
        outcome_of("ec2", network::list_reservations(&it.account))
    }),
    ("ec2:DescribeSpotPriceHistory", |it| {
        outcome_of("ec2", pricing::read_spot_prices(&it.account))
    }),
    ("pricing:GetProducts", |it| outcome_of("pricing", pricing::read_list_prices(&it.account))),
    ("ec2:DescribeInstanceStatus", |it| {
        outcome_of("ec2", instance_status::unhealthy_instances(&it.account))
    }),
    ("ec2:DescribeImages", |it| {
        let term = ImageTerm::Id("ami-0123456789abcdef0".to_owned());
        it.images(term).boxed()
    }),
    ("ssm:GetParameter", |it| it.images(latest()).boxed()),
    ("ssm:GetParameter", |it| it.secret().boxed()),
    ("eks:DescribeCluster", |it| {
        let name = it.aws.fact("cluster");
        outcome_of("eks", cluster_info::describe_cluster(&it.account, name))
    }),
    ("arc-zonal-shift:GetManagedResource", |it| {
        let arn = "arn:aws:eks:us-west-2:123456789012:cluster/tests";
        outcome_of("arc-zonal-shift", zonal_shift::shifted_zones(&it.account, arn))
    }),
    ("sqs:GetQueueUrl", |it| outcome_of("sqs", sqs::queue_url(&it.account, it.aws.fact("queue")))),
    ("sqs:ReceiveMessage", |it| outcome_of("sqs", it.message())),
    ("sqs:DeleteMessage", |it| outcome_of("sqs", it.delete())),
    ("sqs:ChangeMessageVisibility", |it| outcome_of("sqs", it.return_message())),
    ("iam:GetInstanceProfile", |it| it.profile().boxed()),
    ("iam:CreateInstanceProfile", |it| it.profile().boxed()),
    ("iam:TagInstanceProfile", |it| it.profile().boxed()),
    ("iam:AddRoleToInstanceProfile", |it| it.profile().boxed()),
    ("iam:PassRole", |it| it.profile().boxed()),
    ("iam:ListInstanceProfiles", |it| it.unused().boxed()),
    ("ec2:DescribeInstances", |it| it.unused().boxed()),
    ("iam:RemoveRoleFromInstanceProfile", |it| it.unused().boxed()),
    ("iam:DeleteInstanceProfile", |it| it.unused().boxed()),
    ("ec2:DescribeInstances", |it| it.list().boxed()),
    ("ec2:CreateLaunchTemplate", |it| it.launch(true).boxed()),
    ("ec2:CreateTags", |it| it.launch(true).boxed()),
    ("ec2:CreateTags", |it| it.launch(false).boxed()),
    ("ec2:CreateFleet", |it| it.launch(false).boxed()),
    ("ec2:RunInstances", |it| it.launch(false).boxed()),
    ("iam:PassRole", |it| it.launch(false).boxed()),
    ("ec2:TerminateInstances", |it| it.end().boxed()),
    ("ec2:DescribeLaunchTemplates", |it| it.templates().boxed()),
    ("ec2:DeleteLaunchTemplate", |it| it.templates().boxed()),
];

fn outcome_of<'s, T>(
    service: &'static str,
    call: impl Future<Output = Result<T, AwsError>> + Send + 's,
) -> BoxFuture<'s, Outcome> {
    call.map(move |answer| match answer {
        Ok(_) => Ok(()),
        Err(fault) => Err(fault.to_failure(service).text),
    })
    .boxed()
}

fn latest() -> ImageTerm {
    ImageTerm::Alias { family: AmiFamily::Al2023, version: "latest".to_owned() }
}

/// A cluster on the AWS of the tests, with the state of the daemon.
struct Stage {
    aws: Aws,
    account: Arc<AwsClients>,
    cluster: Arc<Cluster>,
    provider: Ec2,
    /// Makes names unique.
    count: u32,
}

impl Stage {
    async fn start(test: &str) -> Option<Self> {
        let aws = Aws::start_or_skip(test)?;
        let cluster = Arc::new(aws.cluster("here", "prod"));
        let account =
            AwsClients::from_config(AccountKey::from_cluster(&cluster), aws.config().await);
        let regions = Regions::of_accounts(Accounts::from_clients(account));
        let region_handle = regions.handle_for(&cluster).await;
        let account = region_handle.shared.account.clone();
        let provider = Ec2::new(cluster.clone(), api(), region_handle);
        let (events, mut inbox) = mpsc::channel(64);
        provider.register_cluster(cluster.clone(), Some(events)).await;
        // The first event has no results yet, the second has the results of AWS.
        for _ in 0..2 {
            while !matches!(inbox.recv().await, Some(Event::ClassesChanged(_))) {}
        }
        tokio::spawn(async move { while inbox.recv().await.is_some() {} });
        Some(Self { aws, account, cluster, provider, count: 0 })
    }

    fn next(&mut self) -> u32 {
        self.count += 1;
        self.count
    }

    async fn images(&self, term: ImageTerm) -> Outcome {
        let (mut images, terms) = (Images::default(), [term]);
        let found = images.find(&self.account, &terms, Some("1.33")).await;
        found.map(drop).map_err(|error| error.text)
    }

    /// Reads the join secret from an SSM parameter.
    async fn secret(&mut self) -> Outcome {
        let name = "/outrigger/token";
        self.aws.send_command(&json!({"do": "parameter", "name": name, "value": "secret"}));
        let token = SecretSource::SsmParameter(name.to_owned());
        let bootstrap = Bootstrap::Kubeadm { token };
        let (secrets, client) = (JoinSecrets::default(), api().client);
        let found = secrets.secret_for(&bootstrap, &self.account, &client).await;
        let found = found.map_err(|lack| lack.why);
        found.map(|secret| assert_eq!(secret.expect("a secret").0, "secret"))
    }

    /// A message and the queue that it is from.
    async fn message(&mut self) -> Result<(String, Message), AwsError> {
        self.aws.send_command(&json!({"do": "send", "body": "of the tests"}));
        let url = sqs::queue_url(&self.account, self.aws.fact("queue")).await?;
        let mut all = sqs::receive_messages(&self.account, &url).await?;
        Ok((url, all.pop().expect("a message")))
    }

    async fn delete(&mut self) -> Result<(), AwsError> {
        let (url, message) = self.message().await?;
        sqs::delete_message(&self.account, &url, &message).await
    }

    async fn return_message(&mut self) -> Result<(), AwsError> {
        let (url, message) = self.message().await?;
        sqs::change_visibility(&self.account, &url, &message, Duration::ZERO).await
    }

    /// A cluster whose nodes have an IAM role.
    fn of_role(&self, name: &str) -> Cluster {
        let mut cluster = Cluster::clone(&self.cluster);
        cluster.name = name.into();
        cluster.node_classes[0].identity =
            Some(NodeIdentity::Role(self.aws.fact("role").to_owned()));
        cluster
    }

    /// Creates the instance profile of a role without one.
    async fn profile(&mut self) -> Outcome {
        let cluster = self.of_role(&format!("cluster-{}", self.count + 1));
        self.next();
        let mut profiles = Profiles::default();
        let made = profiles.profile_for(&self.account, &cluster, true, &cluster.node_classes[0]);
        made.await.map(drop).map_err(|error| error.text)
    }

    /// Removes an unused instance profile.
    async fn unused(&mut self) -> Outcome {
        let name = format!("outrigger-old-{}", self.next());
        let role = self.aws.fact("role").to_owned();
        self.aws.send_command(&json!({
            "do": "profile", "name": name, "path": "/outrigger/us-west-2/here/", "role": role,
            "age": 7200,
        }));
        let clusters = [Arc::new(self.of_role("prod"))];
        let mut profiles = Profiles::default();
        let removed = profiles.delete_unused(&self.account, &CleanupScope::of_all(&clusters)).await;
        removed
            .map(|count| assert!(count > 0, "{name} is still present"))
            .map_err(|fault| fault.to_failure("iam").text)
    }

    async fn list(&self) -> Outcome {
        outcome(self.provider.execute(Command::ListInstances).await).map(drop)
    }

    async fn launched(&mut self, label: &str) -> Result<Option<Instance>, String> {
        let claim = ClaimRecord {
            id: ClaimId(format!("claim-{}", self.next())),
            installation: self.cluster.installation.clone(),
            cluster: self.cluster.name.clone(),
            origin: ClaimOrigin::default(),
            pool: "general".into(),
            node_class: Some("default".into()),
            created: Timestamp::UNIX_EPOCH,
            expire_after: None,
            expire_hard_after: None,
            termination_grace_period: None,
            pool_hash: "v1:1".to_owned(),
            node_class_hash: node_class_hash(self.cluster.node_classes.first()),
            startup_taints: Vec::new(),
            reason: "of the tests".to_owned(),
            command_id: "1".to_owned(),
        };
        let launch = Launch {
            offerings: vec![OfferingKey {
                instance_type: "m5.large".into(),
                zone: "us-west-2a".into(),
                capacity_type: CapacityType::OnDemand,
                reservation: None,
            }],
            labels: Labels::from([("label".to_owned(), label.to_owned())]),
            taints: vec![Taint::new(TAINT_UNREGISTERED, Effect::NoExecute)],
            tags: claim.to_tags(),
            devices: BTreeSet::new(),
            overlaid: false,
            relaxed: false,
            varied: false,
            claim,
        };
        outcome(self.provider.execute(Command::Launch(Box::new(launch))).await)
    }

    /// Launches from a new or an existing template.
    async fn launch(&mut self, new: bool) -> Outcome {
        let label = format!("only-{}", self.count);
        let label = if new { &label } else { "same" };
        self.launched(label).await.map(drop)
    }

    async fn end(&mut self) -> Outcome {
        let instance = self.launched("same").await?.expect("an instance").id;
        let claim = "of-the-tests".into();
        let command = Command::Terminate { claim, instance };
        outcome(self.provider.execute(command).await).map(drop)
    }

    /// Removes templates that are unused for a while.
    async fn templates(&mut self) -> Outcome {
        self.launched(&format!("only-{}", self.count)).await?;
        let known = self.aws.send_command(&json!({"do": "templates"}));
        let known = known["templates"].as_array().expect("a list");
        let names = known.iter().filter_map(|template| template["name"].as_str());
        let mut cache = LaunchTemplateCache::default();
        let ago = KEPT + SignedDuration::from_secs(1);
        cache.apply_listing(names.map(str::to_owned), clock::now() - ago);
        let care = CleanupScope::of_all(&[]);
        let removed =
            Templates::from_cache(cache).delete_unused(&self.account, "here", &care).await;
        removed
            .map(|count| assert!(count > 0, "{known:?} are still present"))
            .map_err(|fault| fault.to_failure("ec2").text)
    }
}

/// The error message of a failed command, which must be a missing permission.
fn outcome(answer: CommandResult) -> Result<Option<Instance>, String> {
    match answer {
        CommandResult::Launched(instance) => Ok(Some(instance)),
        CommandResult::Terminating(_) | CommandResult::Instances(_) => Ok(None),
        CommandResult::Failed { kind, text } => {
            assert_eq!(kind, FailureKind::Denied, "{text}");
            Err(text)
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn denied_call_names_the_missing_permission_and_statement() {
    let test =
        "providers::aws::tests::iam_denied::denied_call_names_the_missing_permission_and_statement";
    let Some(mut stage) = Stage::start(test).await else {
        return;
    };
    fence::run_unfenced(try_each(&mut stage)).await;
}

async fn try_each(stage: &mut Stage) {
    // Many instances are launched, and terminated at once.
    stage.aws.send_command(&json!({"do": "limits", "limits": null}));
    stage.aws.send_command(&json!({"do": "settings", "hide": 0}));
    stage.launch(false).await.expect("the template exists");
    let mut tried = BTreeSet::new();
    for (action, operation) in OPERATIONS {
        stage.aws.send_command(&json!({"do": "deny", "actions": [action]}));
        let why = operation(stage).await.expect_err(action);
        stage.aws.send_command(&json!({"do": "allow", "actions": [action]}));
        let sid = granting_statement(action, "").expect("a statement");
        for part in [format!("not allowed: {action}"), format!("statement {sid} ")] {
            assert!(why.contains(&part), "{action}: {part:?} is not in {why:?}");
        }
        if let Err(why) = operation(stage).await {
            panic!("{action} is allowed, but: {why}");
        }
        tried.insert(*action);
    }
    println!("{} operations, each without one of {} permissions", OPERATIONS.len(), tried.len());
    let granted = STATEMENTS.iter().flat_map(|statement| statement.actions).copied();
    assert_eq!(tried, granted.collect());
}
