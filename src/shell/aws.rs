//! Amazon EC2 as it is: the SDK's shapes become ours, and ours become its calls.
//! It must not know why anything is asked for: what EC2's answers mean stands in `ec2`.

pub(crate) mod record;

pub(crate) mod fault;

pub(crate) mod account;

pub(crate) mod care;

pub(crate) mod token;

pub(crate) mod identity;

pub(crate) mod pages;

pub(crate) mod network;

pub(crate) mod types;

pub(crate) mod prices;

pub(crate) mod images;

pub(crate) mod listed;

pub(crate) mod template;

pub(crate) mod instances;

pub(crate) mod ends;

pub(crate) mod launch;

pub(crate) mod profile;

pub(crate) mod cluster;

pub(crate) mod eks;

pub(crate) mod queue;

pub(crate) mod health;

pub(crate) mod notices;

pub(crate) mod secret;

pub(crate) mod outputs;

pub(crate) mod shift;

pub(crate) mod chores;

pub(crate) mod ready;

pub(crate) mod trial;

pub(crate) mod desk;

pub(crate) mod keeper;

pub(crate) mod provider;

#[cfg(test)]
pub(crate) mod idle;

#[cfg(test)]
pub(crate) mod moto;

#[cfg(test)]
mod denied;

#[cfg(test)]
mod cases;
