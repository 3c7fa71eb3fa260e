//! What is asked of AWS, and what is made of its answers, on an AWS that says what the test wants.
//! It must not know what EC2's answers mean for launches: `ec2` does.

mod canned;

mod lasting;

mod faults;

mod images;

mod launches;

mod homes;

mod listings;

mod prices;

mod profiles;

mod templates;

mod queue;

mod classes;
