//! An account and region: the SDK's clients, and how often they may be used.
//! It must not know what is asked of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aws_config::sts::AssumeRoleProvider;
use aws_config::{AppName, BehaviorVersion, Region, SdkConfig};
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_smithy_types::retry::RetryConfig;
use aws_smithy_types::timeout::TimeoutConfig;
use tokio::sync::Mutex;

use crate::model::capacity_scope::CapacityScope;
use crate::model::cluster::Cluster;
use crate::outbound::clock_skew::SkewGauge;
use crate::outbound::rate_limiter::Limiter;
use crate::providers::aws::interceptor::Recorder;

/// Time for one call with all its retries; whoever carries commands out waits a little longer.
const CALL: Duration = Duration::from_secs(60);
/// Time for one attempt.
const ATTEMPT: Duration = Duration::from_secs(20);
/// Time for one look into a queue, which SQS lets wait for 20 s.
const POLL: Duration = Duration::from_secs(30);
/// Time for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Attempts of one call: the engine tries again, and decides anew before it does.
const ATTEMPTS: u32 = 3;

/// Who we say we are in each request: CloudTrail shows it.
const APP: &str = "outrigger";

/// Which account and region it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AccountKey {
    /// Region.
    pub(crate) region: String,
    /// Role that is assumed; none means the daemon's own identity.
    pub(crate) role: Option<String>,
}

impl AccountKey {
    /// Where a cluster's instances are.
    pub(crate) fn of(cluster: &Cluster) -> Self {
        Self {
            region: cluster.region.clone(),
            role: cluster.role_arn.clone(),
        }
    }

    /// Whether both are of one region and one account, whichever role of it each assumes: so EC2
    /// counts calls, and so queues are shared. Which account the daemon's own is, AWS alone knows.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        let market = |own: &Self| CapacityScope::region(&own.region, own.role.as_deref());
        market(self) == market(other)
    }
}

/// How often the API may be called, of which each has a bucket of its own. EC2 counts by account
/// and region, whoever calls, so we stay below what it allows us. Source: EC2 developer guide,
/// request throttling: 100 requests at once and 20 a second for reads, fewer for what changes.
#[derive(Clone, Debug)]
pub(crate) struct RateLimits {
    pub(crate) read: Limiter,
    pub(crate) fleet: Limiter,
    pub(crate) terminate: Limiter,
    pub(crate) change: Limiter,
}

impl Default for RateLimits {
    fn default() -> Self {
        Self {
            read: Limiter::new(10, 50),
            fleet: Limiter::new(10, 100),
            terminate: Limiter::new(5, 50),
            change: Limiter::new(5, 50),
        }
    }
}

/// For calls of EC2 that are tried once.
pub(crate) fn once() -> aws_sdk_ec2::config::Builder {
    aws_sdk_ec2::config::Builder::new().retry_config(RetryConfig::disabled())
}

/// Clients of one account and region.
#[derive(Debug)]
pub(crate) struct AwsClients {
    pub(crate) key: AccountKey,
    pub(crate) config: SdkConfig,
    pub(crate) buckets: RateLimits,
    /// By how much the clock of this host differs from that of AWS.
    pub(crate) skew: SkewGauge,
    pub(crate) ec2: aws_sdk_ec2::Client,
    pub(crate) shift: aws_sdk_arczonalshift::Client,
    pub(crate) eks: aws_sdk_eks::Client,
    pub(crate) iam: aws_sdk_iam::Client,
    pub(crate) pricing: aws_sdk_pricing::Client,
    pub(crate) sqs: aws_sdk_sqs::Client,
    pub(crate) ssm: aws_sdk_ssm::Client,
}

impl AwsClients {
    /// Clients that assume the role where there is one. Nothing is sent yet.
    pub(crate) async fn new(key: AccountKey) -> Self {
        let base = aws_config::defaults(BehaviorVersion::latest())
            .region(Region::new(key.region.clone()))
            // Not adaptive: that slows a region down for all accounts when one is throttled, as
            // the SDK counts in one place for the whole process. Each has buckets of its own here.
            .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS))
            .timeout_config(timeouts(ATTEMPT))
            .load()
            .await;
        let base = named(base);
        let config = match &key.role {
            None => base,
            Some(role) => {
                let provider = AssumeRoleProvider::builder(role)
                    .configure(&base)
                    .session_name("outrigger")
                    .region(Region::new(key.region.clone()))
                    .build()
                    .await;
                let provider = SharedCredentialsProvider::new(provider);
                base.into_builder().credentials_provider(provider).build()
            }
        };
        Self::of(key, config)
    }

    /// Clients that are configured so.
    pub(crate) fn of(key: AccountKey, config: SdkConfig) -> Self {
        let config = named(config);
        let skew = SkewGauge::default();
        let recorder = || Recorder {
            region: key.region.clone(),
            skew: skew.clone(),
        };
        let pricing = aws_sdk_pricing::config::Builder::from(&config)
            .region(Region::new(pricing_region(&key.region)));
        Self {
            buckets: RateLimits::default(),
            ec2: aws_sdk_ec2::Client::from_conf(
                aws_sdk_ec2::config::Builder::from(&config)
                    .interceptor(recorder())
                    .build(),
            ),
            shift: aws_sdk_arczonalshift::Client::from_conf(
                aws_sdk_arczonalshift::config::Builder::from(&config)
                    .interceptor(recorder())
                    .build(),
            ),
            eks: aws_sdk_eks::Client::from_conf(
                aws_sdk_eks::config::Builder::from(&config)
                    .interceptor(recorder())
                    .build(),
            ),
            iam: aws_sdk_iam::Client::from_conf(
                aws_sdk_iam::config::Builder::from(&config)
                    .interceptor(recorder())
                    .build(),
            ),
            pricing: aws_sdk_pricing::Client::from_conf(pricing.interceptor(recorder()).build()),
            sqs: aws_sdk_sqs::Client::from_conf(
                aws_sdk_sqs::config::Builder::from(&config)
                    .interceptor(recorder())
                    .timeout_config(timeouts(POLL))
                    .build(),
            ),
            ssm: aws_sdk_ssm::Client::from_conf(
                aws_sdk_ssm::config::Builder::from(&config)
                    .interceptor(recorder())
                    .build(),
            ),
            config,
            skew: skew.clone(),
            key,
        }
    }
}

fn named(config: SdkConfig) -> SdkConfig {
    let mut config = config.into_builder();
    config.set_app_name(AppName::new(APP).ok());
    config.build()
}

fn timeouts(attempt: Duration) -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(CONNECT)
        .operation_attempt_timeout(attempt)
        .operation_timeout(CALL)
        .build()
}

/// Where the price list of a region is asked for: it is served in few. Source: spec/aws.md §4.8.
fn pricing_region(region: &str) -> &'static str {
    match region.split('-').next() {
        Some("ap") => "ap-south-1",
        Some("cn") => "cn-northwest-1",
        Some("eu") => "eu-central-1",
        _ => "us-east-1",
    }
}

/// All accounts and regions that clusters are in, each with one set of clients.
#[derive(Debug, Default)]
pub(crate) struct Accounts(Mutex<BTreeMap<AccountKey, Arc<AwsClients>>>);

impl Accounts {
    /// These alone are known beforehand.
    #[cfg(test)]
    pub(crate) fn with(account: AwsClients) -> Self {
        let known = BTreeMap::from([(account.key.clone(), Arc::new(account))]);
        Self(Mutex::new(known))
    }

    /// The clients of one.
    pub(crate) async fn get(&self, key: &AccountKey) -> Arc<AwsClients> {
        let mut known = self.0.lock().await;
        if let Some(own) = known.get(key) {
            return own.clone();
        }
        let mut own = AwsClients::new(key.clone()).await;
        if let Some(beside) = known.values().find(|it| it.key.is_beside(key)) {
            own.buckets = beside.buckets.clone();
        }
        let own = Arc::new(own);
        known.insert(key.clone(), own.clone());
        own
    }
}

#[cfg(test)]
mod tests {
    use super::{AccountKey, Accounts, pricing_region};

    #[tokio::test]
    async fn roles_of_one_account_and_region_have_the_same_buckets() {
        let key = |region: &str, role: Option<&str>| AccountKey {
            region: region.to_owned(),
            role: role.map(|own| format!("arn:aws:iam::{own}")),
        };
        let accounts = Accounts::default();
        let one = accounts.get(&key("eu-west-1", Some("1:role/a"))).await;
        for (region, role, is_same) in [
            ("eu-west-1", Some("1:role/b"), true),
            ("eu-west-1", Some("2:role/a"), false),
            ("eu-west-2", Some("1:role/a"), false),
            ("eu-west-1", None, false),
        ] {
            let other = accounts.get(&key(region, role)).await;
            let is_one = one.buckets.read.is_one_with(&other.buckets.read);
            assert_eq!(is_one, is_same, "{region} {role:?}");
        }
    }

    #[test]
    fn price_lists_are_asked_for_where_they_are_served() {
        for (region, expect) in [
            ("us-west-2", "us-east-1"),
            ("eu-north-1", "eu-central-1"),
            ("ap-southeast-2", "ap-south-1"),
            ("cn-north-1", "cn-northwest-1"),
            ("sa-east-1", "us-east-1"),
        ] {
            assert_eq!(pricing_region(region), expect, "{region}");
        }
    }
}
