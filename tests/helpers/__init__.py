"""What tests share: drawn data, servers, and scripts that run in processes of their own."""
