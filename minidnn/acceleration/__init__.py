"""What joins front ends and the compiler: parts of foreign networks run in their place."""
